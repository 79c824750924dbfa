"""One data set on OpenML without a network: scikit-learn itself, with local files where it opens a URL."""

import gzip
import hashlib
import io
import json

from sklearn.datasets import _openml

from refocal.experiments.data.registry import REGISTRY, Source

MIXED = """@RELATION mixed
@ATTRIBUTE id INTEGER
@ATTRIBUTE colour {red, green, blue, never}
@ATTRIBUTE size REAL
@ATTRIBUTE level {-1, 0, 1}
@ATTRIBUTE class {10, 9, 100}
@DATA
1,green,0.5,1,10
2,red,1.5,-1,9
3,?,2.5,0,100
4,green,3.5,0,10
"""

SPARSE = """@RELATION sparse
@ATTRIBUTE a NUMERIC
@ATTRIBUTE b NUMERIC
@ATTRIBUTE class {no, yes}
@DATA
{0 1.5, 2 yes}
{1 2, 2 no}
{2 yes}
"""


class Response(io.BytesIO):
    def info(self):
        return {"Content-Encoding": "gzip"}


def serve(monkeypatch, number, arff, *, form="ARFF", ignore=()):
    """Let scikit-learn find one OpenML data set, and count what it opens."""
    lines = arff.splitlines()
    attributes = [line.split(maxsplit=2)[1:] for line in lines if line.startswith("@ATTRIBUTE")]
    features = [
        {
            "index": str(i),
            "name": name,
            "data_type": "nominal" if kind.startswith("{") else "numeric",
            "is_target": str(name == "class").lower(),
            "is_ignore": str(name in ignore).lower(),
            "is_row_identifier": "false",
            "number_of_missing_values": "0",
        }
        for i, (name, kind) in enumerate(attributes)
    ]
    description = {
        "id": str(number),
        "name": "stand-in",
        "version": "1",
        "description": "a stand-in",
        "format": form,
        "status": "active",
        "url": "https://www.openml.org/data/v1/download/1/stand-in.arff",
        "md5_checksum": hashlib.md5(arff.encode()).hexdigest(),
    }
    rows = len(lines) - lines.index("@DATA") - 1
    api = "https://www.openml.org/api/v1/json/data"
    pages = {
        f"{api}/{number}": json.dumps({"data_set_description": description}),
        f"{api}/features/{number}": json.dumps({"data_features": {"feature": features}}),
        f"{api}/qualities/{number}": json.dumps(
            {"data_qualities": {"quality": [{"name": "NumberOfInstances", "value": str(rows)}]}}
        ),
        description["url"]: arff,
    }
    opened = []

    def urlopen(request, *args, **options):
        opened.append(request.full_url)
        return Response(gzip.compress(pages[request.full_url].encode()))

    monkeypatch.setattr(_openml, "urlopen", urlopen)
    return opened


def register(monkeypatch, **fields):
    entry = Source("stand-in", None, sha256=None, **fields)
    monkeypatch.setitem(REGISTRY, "stand-in", entry)
