"""Plan of a run on a cluster of GPUs: a cost model, and a discrete-event simulation on it."""

from posttrain.planning.cluster.coefficients import Costs, Decoding, Updating
from posttrain.planning.cluster.gpu_costs import GPUCluster
from posttrain.planning.cluster.gpu_memory import Room
from posttrain.planning.cluster.hardware import CHANNEL, GPUS, Efficiency
from posttrain.planning.cluster.result import ClusterPlan
from posttrain.planning.cluster.shapes import dense_shape
from posttrain.planning.cluster.simulation import simulate
from posttrain.planning.cluster.splits import COLOCATED, Search, Split
from posttrain.planning.cluster.workload import Workload

__all__ = [
    "CHANNEL",
    "COLOCATED",
    "GPUS",
    "ClusterPlan",
    "Costs",
    "Decoding",
    "Efficiency",
    "GPUCluster",
    "Room",
    "Search",
    "Split",
    "Updating",
    "Workload",
    "dense_shape",
    "simulate",
]
