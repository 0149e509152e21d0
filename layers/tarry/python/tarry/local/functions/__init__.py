"""Functions as processes of this machine, under a Lambda runtime client."""
