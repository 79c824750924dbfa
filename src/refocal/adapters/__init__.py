"""The objective of a loss that another library computed, from that library's own arguments.

Every function names a library and takes the arguments of its loss under their names, in their order and with
their defaults; the arguments of a batch (scores, targets) are left out, and what the library does not have is
keyword-only. It returns the objective whose ``posterior`` undoes that loss, or raises a ValueError with the
reason where a score does not determine the probability. Arguments without effect on the posterior
(``reduction`` and the like) are taken and not looked at. The tiny constants with which some libraries keep
their logarithms finite are left out.
"""

from refocal.adapters._boosting import from_bokbokbok, from_catboost
from refocal.adapters._classification import (
    from_catalyst,
    from_catalyst_multiclass,
    from_fastai,
    from_keras_binary,
    from_keras_categorical,
    from_optax,
    from_timm_multilabel,
    from_timm_single_label,
)
from refocal.adapters._detection import (
    from_detectron2,
    from_fvcore,
    from_mmdetection,
    from_torchvision,
    from_transformers,
    from_ultralytics,
    from_ultralytics_varifocal,
    from_yolov5,
    from_yolov5_quality,
)
from refocal.adapters._segmentation import from_kornia, from_kornia_binary, from_monai, from_smp

__all__ = [
    "from_bokbokbok",
    "from_catalyst",
    "from_catalyst_multiclass",
    "from_catboost",
    "from_detectron2",
    "from_fastai",
    "from_fvcore",
    "from_keras_binary",
    "from_keras_categorical",
    "from_kornia",
    "from_kornia_binary",
    "from_mmdetection",
    "from_monai",
    "from_optax",
    "from_smp",
    "from_timm_multilabel",
    "from_timm_single_label",
    "from_torchvision",
    "from_transformers",
    "from_ultralytics",
    "from_ultralytics_varifocal",
    "from_yolov5",
    "from_yolov5_quality",
]
