"""All cases, in the order they run in."""

from . import access, builtins, costs, custom, lists, objects, pods, services, wire

SETUP = objects.SETUP
ALL = [SETUP] + objects.CASES + wire.CASES + lists.CASES + builtins.CASES + services.CASES + pods.CASES + custom.CASES + costs.CASES + access.CASES
