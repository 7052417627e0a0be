"""A verdict on any training script: whether a sample counts the same on whichever rank it lands.

``paceline audit -- torchrun ...`` runs a script by its own command; :func:`paceline.torch.audit` looks at a loss in a
notebook. :mod:`paceline.audit.verdict` says which runs are made, and :mod:`paceline.audit.causes` how causes are told
apart.

**How a script is run unedited.** Its own command starts its own processes, with a folder first on ``PYTHONPATH`` that
holds a ``sitecustomize.py``: Python imports that by itself in every process, whatever starts it (torchrun, ``accelerate
launch``, ``python -m``, ``mp.spawn``). When torch is imported there, what scripts call is changed beneath them: data
loaders note every sample and hand out others in its place, optimizers note gradients and parameters, and the last step
ends the process. Ranks and runs exchange samples and records through files in a temporary folder.
"""

from paceline.audit.launch import Launcher
from paceline.audit.verdict import Audit
from paceline.audit.verdict_types import AuditStatus, AuditVerdict, Cause

__all__ = ["Audit", "AuditStatus", "AuditVerdict", "Cause", "Launcher"]
