"""Asynchronous training on Ray: workers join, leave, die and come back; the server restarts from its checkpoint.

Ray serializes what goes between its processes by pickling: use it among machines that trust each other. Arrays are put
into its shared memory and read there without a copy by workers on the same host.
"""

from paceline.integrations.ray.actors import Gradient, RayPlan, RayServer, RayWorker
from paceline.integrations.ray.job import RayJob

__all__ = ["Gradient", "RayJob", "RayPlan", "RayServer", "RayWorker"]
