"""The parts that several tools share: where they act, the audit, errors explained to a user, stripping the layer."""
