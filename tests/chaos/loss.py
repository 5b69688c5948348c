"""Makes the kernel lose received packets of one network namespace at random.

    nsenter --net=… python -m tests.chaos.loss lose 20      # one of 20
    nsenter --net=… python -m tests.chaos.loss lost         # the number of lost packets
    nsenter --net=… python -m tests.chaos.loss heal

A rule of nftables, set through netlink, drops the packets: it needs root, but no other program. This module
is a program because a process changes the network of its own namespace. Only received packets are dropped,
because the kernel reports dropped outgoing packets to the sender.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from pyroute2.netlink.nfnetlink.nftsocket import Cmp, Regs
from pyroute2.nftables.expressions import genex, verdict
from pyroute2.nftables.main import NFTables

TABLE: Final = "loss"
HOOK: Final = "input"
IPV4: Final = 2
ACCEPT, DROP = 1, 0
RANDOM: Final = 1
REGISTER: Final = Regs.NFT_REG_1


def lose(nft: NFTables, one_in: int) -> None:
    nft.table("add", name=TABLE)
    nft.chain("add", table=TABLE, name=HOOK, hook=HOOK, type="filter", policy=ACCEPT)
    nft.rule("add", table=TABLE, chain=HOOK, expressions=(_by_chance(one_in), verdict(DROP)))


def lost(nft: NFTables) -> int:
    return sum(_packets(rule) for rule in nft.get_rules() if rule.get_attr("NFTA_RULE_TABLE") == TABLE)


def heal(nft: NFTables) -> None:
    nft.table("del", name=TABLE)


def _by_chance(one_in: int) -> list[Any]:
    """Draw a random number below `one_in`. The rule continues, and counts, only if it is 0."""
    number = {"dreg": REGISTER, "modulus": one_in, "type": RANDOM, "offset": 0}
    nothing = {"attrs": [("NFTA_DATA_VALUE", bytes(4))]}
    return [
        _expression("numgen", "NG", number),
        genex("cmp", {"sreg": REGISTER, "op": Cmp.NFT_CMP_EQ, "data": nothing}),
        genex("counter", {}),
    ]


def _expression(name: str, prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    """pyroute2's `genex` for expressions whose attribute names do not begin with the expression's name."""
    attributes = [(f"NFTA_{prefix}_{key.upper()}", value) for key, value in values.items()]
    return {"attrs": [("NFTA_EXPR_NAME", name), ("NFTA_EXPR_DATA", {"attrs": attributes})]}


def _packets(rule: Any) -> int:
    for expression in rule.get_attr("NFTA_RULE_EXPRESSIONS"):
        if expression.get_attr("NFTA_EXPR_NAME") == "counter":
            return int(expression.get_attr("NFTA_EXPR_DATA").get_attr("NFTA_COUNTER_PACKETS"))
    return 0


def main(what: str, *one_in: str) -> None:
    nft = NFTables(nfgen_family=IPV4)
    try:
        if what == "lose":
            lose(nft, int(*one_in))
        elif what == "heal":
            heal(nft)
        else:
            print(lost(nft))
    finally:
        nft.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
