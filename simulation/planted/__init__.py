"""Planted bugs: deliberate faults, one line each, that the simulation must find (design: simulation).

A checker that has never caught anything proves nothing.  `simulation.planted.bugs` lists the
faults, `simulation.planted.suite` plants each in a copy of the tree and has it looked for.
"""
