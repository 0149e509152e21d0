"""The messages that S3, SNS and EventBridge send to a queue, as a function receives them."""

import json
from pathlib import Path
from typing import Any

import boto3

from tarry.testing import Sandbox

TEMPLATE = """\
Resources:
  Direct: {Type: AWS::SQS::Queue}
  Published: {Type: AWS::SQS::Queue}
  Bussed: {Type: AWS::SQS::Queue}
  Ordered: {Type: AWS::SQS::Queue, Properties: {FifoQueue: true, ContentBasedDeduplication: true}}
  Topic:
    Type: AWS::SNS::Topic
    Properties: {Subscription: [{Protocol: sqs, Endpoint: !GetAtt Published.Arn}]}
  OrderedTopic:
    Type: AWS::SNS::Topic
    Properties:
      TopicName: ordered.fifo
      FifoTopic: true
      ContentBasedDeduplication: true
      Subscription: [{Protocol: sqs, Endpoint: !GetAtt Ordered.Arn}]
  Bucket:
    Type: AWS::S3::Bucket
    Properties:
      BucketName: files
      NotificationConfiguration:
        QueueConfigurations: [{Event: s3:ObjectCreated:*, Queue: !GetAtt Direct.Arn}]
        TopicConfigurations: [{Event: s3:ObjectRemoved:*, Topic: !Ref Topic}]
        EventBridgeConfiguration: {}
  OtherBus: {Type: AWS::Events::EventBus, Properties: {Name: other}}
  OtherRule: {Type: AWS::Events::Rule, Properties: {
    EventBusName: other, EventPattern: {source: [aws.s3, shop]}, Targets: [{Id: queue, Arn: !GetAtt Bussed.Arn}]}}
  Rule: {Type: AWS::Events::Rule, Properties: {
    EventPattern: {source: [aws.s3]}, Targets: [{Id: queue, Arn: !GetAtt Bussed.Arn}]}}
"""


def bodies(sandbox: Sandbox, queue: str) -> list[Any]:
    return [json.loads(message.body) for message in sandbox.messages(queue)]


def test_messages_of_s3_sns_and_eventbridge_have_the_fields_that_aws_documents(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    with Sandbox.from_template(tmp_path / "template.yaml", resources=True, region="eu-west-1") as sandbox:
        s3, sns = boto3.client("s3"), boto3.client("sns")
        s3.put_object(Bucket="files", Key="in/a b.csv", Body=b"1")
        s3.put_object(Bucket="files", Key="in/a b.csv", Body=b"22")
        s3.put_object_tagging(Bucket="files", Key="in/a b.csv", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        s3.delete_object(Bucket="files", Key="in/a b.csv")
        number = {"n": {"DataType": "Number", "StringValue": "1.50"}}
        topics = {each["TopicArn"].rpartition(":")[2]: each["TopicArn"] for each in sns.list_topics()["Topics"]}
        for text in ("1", "2"):
            sns.publish(TopicArn=topics["ordered.fifo"], Message=text, MessageGroupId="g", MessageAttributes=number)
        entry = {"EventBusName": "other", "Source": "shop", "DetailType": "paid", "Detail": '{"id": 1}'}
        boto3.client("events").put_events(Entries=[entry])
        created = [body["Records"][0] for body in bodies(sandbox, "Direct")]
        objects = [each["s3"]["object"] for each in created]
        assert [(each["key"], each["size"]) for each in objects] == [("in/a+b.csv", 1), ("in/a+b.csv", 2)]
        assert objects[0]["sequencer"] < objects[1]["sequencer"]
        assert created[0]["s3"]["bucket"]["arn"] == "arn:aws:s3:::files"
        assert created[0]["eventTime"] == "2027-01-15T08:00:00.000Z"
        [published] = bodies(sandbox, "Published")
        signed = {"SignatureVersion", "Signature", "SigningCertURL", "UnsubscribeURL"}
        fields = {"Type", "MessageId", "TopicArn", "Message", "Timestamp", *signed}
        assert published.keys() == {*fields, "Subject"}
        assert published["Subject"] == "Amazon S3 Notification"
        [removed] = json.loads(published["Message"])["Records"]
        assert (removed["eventName"], removed["s3"]["object"].keys()) == ("ObjectRemoved:Delete", {"key", "sequencer"})
        first, second = bodies(sandbox, "Ordered.fifo")
        assert first.keys() == {*fields, "MessageAttributes", "SequenceNumber"}
        assert first["MessageAttributes"] == {"n": {"Type": "Number", "Value": "1.50"}}
        assert len(first["SequenceNumber"]) == 20
        assert first["SequenceNumber"] < second["SequenceNumber"]
        events = bodies(sandbox, "Bussed")
        kinds = ["Object Created", "Object Created", "Object Tags Added", "Object Deleted", "paid"]
        assert [each["detail-type"] for each in events] == kinds
        envelope = {"version", "id", "detail-type", "source", "account", "time", "region", "resources", "detail"}
        assert all(each.keys() == envelope for each in events)
        assert {each["time"] for each in events} == {"2027-01-15T08:00:00Z"}
        assert len({each["id"] for each in events}) == 5
