"""For nbgrader, here and in JupyterLab started in this folder: the course, and what stands in an empty cell."""

c = get_config()  # type: ignore[name-defined]  # noqa: F821 (nbgrader defines it)
c.CourseDirectory.course_id = "mlpkit"
c.ClearSolutions.code_stub = {"python": "# Your code here.\npass"}
c.ClearSolutions.text_stub = "*Your answer, in words.*"
