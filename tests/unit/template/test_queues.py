"""The queues of a template."""

from pathlib import Path

from tests.unit.template.example import read


def test_queues_have_their_names_attributes_and_redrive(tmp_path: Path) -> None:
    template = read(tmp_path)
    assert set(template.queues) == {"dev-jobs", "Dead", "Entries.fifo"}
    jobs = template.queues["dev-jobs"]
    assert (jobs.logical_id, jobs.arn) == ("Jobs", "arn:aws:sqs:us-east-1:123456789012:dev-jobs")
    assert jobs.attributes == {"VisibilityTimeout": "120"}
    assert jobs.visibility_timeout_seconds == 120
    assert (jobs.dead_letter_arn, jobs.max_receive_count) == ("arn:aws:sqs:us-east-1:123456789012:Dead", 7)
    entries = template.queues["Entries.fifo"]
    assert entries.is_fifo
    assert entries.deduplicates_by_content
    assert entries.dead_letter_arn is None


def test_a_parameter_value_overrides_its_default(tmp_path: Path) -> None:
    template = read(tmp_path, Stage="prod")
    assert template.queues["prod-jobs"].visibility_timeout_seconds == 600
    assert "OnlyInProd" in template.queues
