"""What is wrong with the data of a job."""


class DataError(ValueError):
    """One line for a person: names the field of the job file, the path, and what would be right."""


class TextError(DataError):
    """What is wrong with text files; the caller that knows prepends the field that names them."""
