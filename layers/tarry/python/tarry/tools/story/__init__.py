"""The story of one message: its events over consumers, copies, dead letters and redrives, as text, JSON and SVG.

The sandbox, `tarry local` and CloudWatch Logs give the same value, a `Story`, which is drawn by the same code.
"""
