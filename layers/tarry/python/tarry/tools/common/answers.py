"""Answers at an endpoint URL that are not those of SQS. Apart from `places`, because it needs botocore."""

from typing import Any

from botocore.exceptions import HTTPClientError

TOO_LARGE = 413
"""The status of the one answer of SQS itself that is plain text, as it was recorded."""


class NotSqs(HTTPClientError):
    """The program at the endpoint URL does not answer as SQS does. As a proxy, it may have passed the request on."""

    fmt = "no SQS answers at {endpoint_url}, but {what}; check the address"


def checking_answers(client: Any) -> Any:
    """Return a client of SQS whose requests raise `NotSqs` for an answer that boto3 would take for an empty one."""

    def check(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
        if what := _foreign(response_dict, has_result=bool(operation_model.output_shape)):
            raise NotSqs(endpoint_url=client.meta.endpoint_url, what=what)

    def check_url(http_response: Any, parsed: dict[str, Any], **_: Any) -> None:
        if http_response.status_code < 300 and "QueueUrl" not in parsed:
            raise NotSqs(
                endpoint_url=client.meta.endpoint_url, what="a server whose answer to GetQueueUrl has no QueueUrl"
            )

    client.meta.events.register("before-parse.sqs", check)
    client.meta.events.register("after-call.sqs.GetQueueUrl", check_url)
    return client


def _foreign(response: dict[str, Any], *, has_result: bool) -> str | None:
    """Return what answers instead of SQS; None for SQS, and for an error of a server, which boto3 retries."""
    status, headers = response["status_code"], response["headers"]
    if 300 <= status < 400:
        return f"a server that redirects to {headers.get('location', 'another address')} (HTTP status {status})"
    if status >= 500:
        return None
    if "html" in headers.get("content-type", ""):
        return f"a web server with HTML (HTTP status {status})"
    body = response["body"].lstrip()
    if status < 300 and has_result and not body:
        return f"a server with an empty answer (HTTP status {status})"
    # boto3 raises an AttributeError for other JSON, a UnicodeDecodeError for bytes
    if body and body[:1] not in b"{<" and status != TOO_LARGE:
        return f"a server whose answer is neither an object of JSON nor XML (HTTP status {status})"
    return None
