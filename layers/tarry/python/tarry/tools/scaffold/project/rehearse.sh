# Run by `make rehearse`: deploys the stack to MiniStack, which emulates AWS on this machine, sends a message, and shows
# the dead letter. Without AWS_ENDPOINT_URL and with your own keys, the commands do the same on AWS.

MESSAGE='{"id": "o-6", "total": 1350, "card": "declined"}' # one that the handler rejects at its first attempt

set -eu
export AWS_ENDPOINT_URL="http://127.0.0.1:${GATEWAY_PORT:=4566}"
# Not the keys of an account, so no command can change anything on AWS.
export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_DEFAULT_REGION=us-east-1
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_REGION AWS_IGNORE_CONFIGURED_ENDPOINT_URLS

place=$PWD/.venv/ministack
rm -rf "$place/tmp"
mkdir "$place/tmp"
: >"$place/log" # so that grep finds it, even before MiniStack starts
GATEWAY_PORT=$GATEWAY_PORT BIND_HOST=127.0.0.1 MINISTACK_HOST=127.0.0.1 TMPDIR=$place/tmp \
    "$place/bin/ministack" >"$place/log" 2>&1 &
ministack=$!
trap 'kill $ministack 2>/dev/null; wait' EXIT
trap exit INT TERM
until grep -q "Running on" "$place/log"; do
    kill -0 $ministack 2>/dev/null || { cat "$place/log"; exit 1; }
    sleep 0.2
done

run() { # shows a command, and runs it
    printf '\n$ %s\n' "$1"
    eval "$1"
}

run "sam deploy --config-env rehearse"
run "tarry send MyQueueQueue '$MESSAGE' --stack rehearsal"
for second in $(seq 30); do
    if [ -n "$(tarry failed show --stack rehearsal --json 2>/dev/null)" ]; then
        run "tarry failed show --stack rehearsal"
        exit
    fi
    sleep 1
done
echo "There is no dead letter after $second s. The function's log is in .venv/ministack/log."
exit 1
