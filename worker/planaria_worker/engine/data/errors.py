"""What is wrong with the data of a job."""


class DataError(ValueError):
    """One line for a person: names the field of the job file, the path, and what would be right."""
