"""Problems as files with expected answers, written and imported."""
