"""The rules: pure functions of facts about the template and the code."""
