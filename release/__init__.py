"""A release: the changes, the files to publish, and the commands that publish them (``make release VERSION=0.2.0``)."""
