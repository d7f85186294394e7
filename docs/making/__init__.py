"""Extensions of Sphinx that make the site."""
