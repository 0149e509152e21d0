"""The pages of dead letters, divided by what a person does: look, retry, remove, edit, follow a job."""
