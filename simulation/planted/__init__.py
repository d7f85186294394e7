"""Planted bugs: deliberate faults that the simulation must find (design: simulation).

A checker that has never caught anything proves nothing.  `simulation.planted.bugs` lists the
faults. Each replaces a named function or constant, a seam (`simulation.planted.seams`).
`simulation.planted.suite` plants each in a process of its own and has it looked for.
"""
