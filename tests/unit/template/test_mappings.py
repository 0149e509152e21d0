"""The event source mappings of a template."""

from pathlib import Path

from tests.unit.template.example import read


def test_mappings_come_from_sam_events_and_from_resources(tmp_path: Path) -> None:
    by_events, by_resource = sorted(read(tmp_path).mappings, key=lambda mapping: mapping.queue, reverse=True)
    assert (by_events.queue, by_events.function, by_events.qualifier) == ("dev-jobs", "Worker", "live")
    assert (by_events.batch_size, by_events.window_seconds, by_events.reports_failures) == (50, 5, True)
    assert (by_resource.queue, by_resource.function, by_resource.qualifier) == ("Entries.fifo", "Bookkeeper", "")
    assert (by_resource.batch_size, by_resource.window_seconds, by_resource.reports_failures) == (10, 0, False)


def test_a_mapping_has_its_concurrency_and_filter_patterns(tmp_path: Path) -> None:
    by_events, by_resource = sorted(read(tmp_path).mappings, key=lambda mapping: mapping.queue, reverse=True)
    assert by_events.maximum_concurrency == 7
    assert by_events.filters == ('{"body": {"stage": ["dev"]}}', '{"body": {"total": [{"numeric": [">", 100]}]}}')
    assert (by_resource.maximum_concurrency, by_resource.filters) == (None, ())
