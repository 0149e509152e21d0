"""Measure the time from the start of `tarry local` to the first message handled, with 1 and 50 functions.

python benchmarks/start.py [functions ...]
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FUNCTIONS = (1, 50)
TARRY = [sys.executable, "-c", "from tarry.cli import main; main()", "local", "--event", "event.json"]
HANDLED = "COMMITTED"
FUNCTION = """
  Queue{0}: {{Type: AWS::SQS::Queue}}
  Worker{0}:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: worker{0}
      Handler: app.handler
      Runtime: python{1.major}.{1.minor}
      Events: {{Jobs: {{Type: SQS, Properties: {{Queue: !GetAtt Queue{0}.Arn}}}}}}
"""


def measure(functions: int) -> float:
    """Return the seconds from the start of the command to the first message handled."""
    with tempfile.TemporaryDirectory() as name:
        folder, numbers = Path(name), range(functions)
        resources = "".join(FUNCTION.format(number, sys.version_info) for number in numbers)
        (folder / "template.yaml").write_text(f"Transform: AWS::Serverless-2016-10-31\nResources:{resources}")
        for number in numbers:
            (folder / f"worker{number}").mkdir()
            (folder / f"worker{number}" / "app.py").write_text("def handler(event, context): ...")
        arns = [f"arn:aws:sqs:us-east-1:123456789012:Queue{number}" for number in numbers]
        records = [{"body": "{}", "eventSourceARN": arn} for arn in arns]
        (folder / "event.json").write_text(json.dumps({"Records": records}))
        began = time.perf_counter()
        process = subprocess.Popen(TARRY, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        seconds = next((time.perf_counter() - began for line in process.stdout if HANDLED in line), None)
        process.communicate()
    assert seconds is not None, "no message was handled"
    assert process.returncode == 0
    return seconds


if __name__ == "__main__":
    for count in map(int, sys.argv[1:]) if sys.argv[1:] else FUNCTIONS:
        many = f"{count} function{'s'[: count != 1]}"
        print(f"{many}: first message handled {measure(count):.1f} s after the start")
