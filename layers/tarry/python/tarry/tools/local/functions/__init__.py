"""Functions as local processes under a Lambda runtime client."""
