"""docs/reference/metrics.md: the metrics in the code, with meanings from meanings.toml."""

import tomllib

from docs.generator.messages import MEANINGS
from tarry.observe.metrics import METRICS, WITH_EACH_VALUE


def meanings() -> dict[str, str]:
    """Return the meaning of each metric, by name."""
    found: dict[str, str] = tomllib.loads(MEANINGS.read_text("utf-8"))["metrics"]
    return found


def parts() -> dict[str, str]:
    """Return the generated parts of the page, by their names."""
    of_metrics = meanings()
    has = {each: "each value" if each in WITH_EACH_VALUE else "sum" for each in METRICS}
    rows = [f"| `{each.name}` | {each.unit} | {has[each]} | {of_metrics[each.name]} |" for each in METRICS]
    return {"metrics": "\n".join(["| metric | unit | a line has | meaning |", "| --- | --- | --- | --- |", *rows])}
