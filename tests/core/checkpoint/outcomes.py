"""What the scripts that run in ranks tell of a call."""


def outcome(function, *args, **kwargs):
    """Name and message of the error that ``function`` raises."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["no error", ""]
