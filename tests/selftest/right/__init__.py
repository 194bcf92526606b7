"""Right implementations in unusual styles: none of them may be accused."""
