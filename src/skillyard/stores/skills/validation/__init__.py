"""The rules of both skill formats, applied to the files of one bundle."""
