"""`python -m tests.campaigns CAMPAIGN --seed N`: repeat one run, or with --runs hold many."""

from __future__ import annotations

import argparse
import sys

from tests.campaigns.campaign import CAMPAIGNS, RuleBroken, run
from tests.campaigns.defects import DEFECTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", choices=CAMPAIGNS)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--defect", choices=DEFECTS, default="", help="plant it")
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        try:
            federation = run(arguments.campaign, seed, arguments.defect)
        except RuleBroken as broken:
            sys.exit(str(broken))
        print(f"{arguments.campaign} {seed}: {federation.sums} sums, run {federation.digest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
