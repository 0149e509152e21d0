"""Reading the parts of a template: one module for queues, functions, mappings, and the resources beside them."""
