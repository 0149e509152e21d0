"""The rules of `tarry check` as rules of cfn-lint: ``cfn-lint --append-rules tarry.lint.cfn_lint template.yaml``."""

from tarry.tools.check.cfn_lint import RULE_CLASSES

globals().update(RULE_CLASSES)
