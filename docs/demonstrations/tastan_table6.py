"""Table 6 of Tastan and Nandakumar 2025 (arXiv:2502.01289v1): the steps of the inverse. Otherwise as Table 5.

python docs/demonstrations/tastan_table6.py [SEEDS]              # digits, two blocks of width 128
python docs/demonstrations/tastan_table6.py [SEEDS] DIRECTORY    # the paper's size: files of Fed-ISIC2019
"""

from __future__ import annotations

from tastan_table5 import Table, arguments, main

PAPER: Table = {
    # Accuracy after one epoch (%), attention loss, representation loss, latency (ms), GB.
    2: (57.87, 61.50, 1698.19, 118.70, 22.42),
    4: (76.64, 57.42, 1534.97, 119.64, 22.44),
    6: (81.77, 45.67, 1352.91, 120.27, 22.45),
    7: (82.96, 44.11, 1334.32, 120.43, 22.46),
    8: (83.23, 45.10, 1352.55, 120.97, 22.47),
    10: (80.61, 43.23, 1332.62, 121.70, 22.48),
    12: (82.55, 40.40, 1302.41, 122.98, 22.50),
    16: (83.04, 38.86, 1292.36, 124.76, 22.53),
    None: (83.15, 38.77, 1289.71, 10.57, 22.46),
}

if __name__ == "__main__":
    main("inverse_steps", PAPER, "ms", *arguments())
