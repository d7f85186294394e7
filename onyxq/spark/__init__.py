"""Everything that needs PySpark: sessions, compiled jobs, sources and sinks, windows."""
