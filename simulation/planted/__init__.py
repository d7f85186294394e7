"""Planted bugs: deliberate faults that the simulation must find (design: simulation).

A checker that never found a fault proves nothing. `simulation.planted.bugs` lists the faults. Each
replaces a named function or constant, a seam (`simulation.planted.seams`).
`simulation.planted.suite` plants each of them in a process of its own and searches for it.
"""
