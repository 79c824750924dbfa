"""Files of scores of any size: probabilities beside them, metrics, and samples, in batches."""

from refocal.extras import needs

with needs("a file of scores", "pyarrow"):
    import pyarrow as pyarrow

from refocal.scoring.apply import (
    Job as Job,
    Tell as Tell,
    apply_file as apply_file,
    needed_kind as needed_kind,
    quiet as quiet,
)
from refocal.scoring.columns import (
    Scores as Scores,
    class_names as class_names,
    find_scores as find_scores,
    named as named,
    shown as shown,
)
from refocal.scoring.labels import Labelled as Labelled, labelled as labelled
from refocal.scoring.measure import Measures as Measures, Task as Task
from refocal.scoring.paths import InputError as InputError, check_output as check_output
from refocal.scoring.recover import Kind as Kind, Recovery as Recovery
from refocal.scoring.sample import Reservoir as Reservoir
from refocal.scoring.sources import Source as Source, open_source as open_source
