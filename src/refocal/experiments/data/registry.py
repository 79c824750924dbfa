"""The data sets of the paper: what they are called, where they come from, what is known about the copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Source:
    """One data set of the registry.

    Attributes:
        name: As on the command line, and the name of its file without ``.npz``.
        paper: As in the paper's tables; None for a variant that has no rows of its own there.
        n_classes: Of the version that is meant.
        openml: Its number on OpenML; None where no number is certain.
        where: In words, where the data come from if not from OpenML.
        sha256: Of the file that the published results were made with.
        kind: "tabular" for the paper's 30 small sets (MNIST and its like too), "image" for the ResNet sets.
        partial: That file has only a part of the rows: its results are shown, but not judged.
        codes: Categorical columns with numbers as levels keep these numbers; otherwise they become one-hot.
        shape: Of one image in an OpenML row, which is then stored as uint8, channels last.
        n_rows: Of the whole OpenML table, where rows are images.
        n_test: How many of the last OpenML rows are the test set.
        balanced: The test set has equally many rows of each class, by which the order of the rows is checked.
        notes: What a reader of the results should know.

    Example:
        >>> REGISTRY["usps"].openml, REGISTRY["usps"].n_classes
        (41082, 10)
    """

    name: str
    paper: str | None
    n_classes: int
    openml: int | None
    sha256: str | None
    where: str = ""
    kind: Literal["tabular", "image"] = "tabular"
    partial: bool = False
    codes: bool = False
    shape: tuple[int, ...] | None = None
    n_rows: int | None = None
    n_test: int = 0
    balanced: bool = False
    notes: str = ""


ASU = "ASU feature selection repository"
LIBSVM = "LIBSVM data sets"
PERHAPS_BINARY = "the published error fits a binary version of unknown class pairs; this is the original"

# In the order of the paper's tables, the variants after them.
_SOURCES = [
    Source(
        "australian",
        "Australian",
        2,
        40981,
        "00bf2d19ee0b9863af9d390dba9464e006f210d3947e8a0aa21525e35a2e4c29",
        codes=True,
    ),
    Source(
        "phishing",
        "Phishing",
        2,
        4534,
        "9184254ed7f0ad1d4681ca231d5e7deb3a3c1d6aaf1fae0475edc6804a020516",
        codes=True,
    ),
    Source("spambase", "Spambase", 2, 44, "cafdf01549d7c8d92e5d523fc3947e9c80a9690803fea6f282eaa065b46dee51"),
    Source(
        "waveform",
        "Waveform",
        3,
        60,
        "01e4cf499d8add61a56922f62e11aaa8ebb4a43661e24cda2c94cb6242ab9576",
        notes="40 features; waveform-21 is the version without the noise columns",
    ),
    Source("twonorm", "Twonorm", 2, 1507, "686d7d4b539c6eb71880694a257182b8b2f2abbbca5d6f6e59fd24767af47400"),
    Source("adult", "Adult", 2, 1590, "a59a2aeeabe54d2a775f19550110bcad31f1b2e8e1fd8b81c5a198d0eb36d30e"),
    Source(
        "banknote", "Banknote", 2, 1462, "4fd992b772f0610296c3b7748b6b6d0399dcf66f5420dba17b8a04ddee1537a7"
    ),
    Source("phoneme", "Phoneme", 2, 1489, "6446336b56101a10b2c59fdff8cdc157c597ec98a66de579388ae2d4b879c51d"),
    Source("magic", "Magic", 2, 1120, "6186baafc3b301f3aa24f5b830d629605530659af6f94d6b2fbcc3737e979ffc"),
    Source("gisette", "Gisette", 2, 41026, None),
    Source(
        "usps",
        "USPS",
        10,
        41082,
        "04769a54d5aa359c7d2e9158177f12af419beb58da1b30c63dc404d9a50e42f3",
        notes=PERHAPS_BINARY,
    ),
    Source(
        "splice",
        "Splice",
        3,
        46,
        "2b259f09397ec1fbcc581c2028611cd85d9755af97ae4d852186ffa75497d923",
        notes="the published error fits splice-binary; OpenML gives one-hot nucleotides",
    ),
    Source("banana", "Banana", 2, 1460, "bd6105573e5c75ccf99a87ba8cebaa5089ac5ebcd96ff81012a39a5f2e779e9b"),
    Source(
        "ringnorm", "Ringnorm", 2, 1496, "d0ef676b78669e75e4596685efa9b17b3abf856420a35ca25e6c57ee48b6130e"
    ),
    Source(
        "image",
        "Image",
        7,
        36,
        "d414b7c8d0a7323d3f6a1cf6a4ef631f85d2ce955c5240246df66484927dfcea",
        notes=PERHAPS_BINARY,
    ),
    Source(
        "coil20",
        "Coil20",
        20,
        None,
        "549c017d86dc090b482700f9dd1624434a4f3dfd50ac55b076cb29b8bd1304db",
        where=f"{ASU}, COIL20.mat",
    ),
    Source(
        "basehock",
        "Basehock",
        2,
        None,
        "8b48fe44870d7081b8b5c64c526a1f7a279bb321aeb0a0ffd2e6d847e0e90419",
        where=f"{ASU}, BASEHOCK.mat",
    ),
    Source(
        "isolet",
        "Isolet",
        26,
        300,
        "05e594ee3dd2b5497e7895edb93bb9764279c920ef273690529c717cf10d373a",
        notes=PERHAPS_BINARY,
    ),
    Source(
        "w8a",
        "W8a",
        2,
        None,
        "b67f4472e4c8bf83d07d12729be10d6bbff47820f1f6b97a4a4280c62a8ad879",
        where=f"{LIBSVM}, w8a and w8a.t",
        partial=True,
        notes="the stored copy is the LIBSVM training part: 49,749 of 64,700 rows",
    ),
    Source("mushroom", "Mushroom", 2, 24, "3d1667b2cf783028579a883eb850c1a22a7b194226b79ae3b81405b13a6b8340"),
    Source(
        "artificial-characters",
        "Artificial-character",
        10,
        1459,
        "eac82b2ae50f67f135efb2325048462c90a5f57f33b7b0e92d4eeada259754df",
    ),
    Source(
        "gas-drift",
        "Gas-drift",
        6,
        1476,
        "12585ae121c583a881872057be2b3f2168ac2d6ed807c433abe35cdae1a39d8d",
        partial=True,
        notes="the stored copy has no batches 7 and 10: 6,697 of 13,910 rows",
    ),
    Source(
        "japanese-vowels",
        "Japanesevowels",
        9,
        375,
        "a80544ba5fbaf193e46bd6b7da5e97552dc842262a6abc95af610fe9572b7696",
    ),
    Source("letter", "Letter", 26, 6, "9d7bb558ba8256c8ae8e11eaf0616bf276467ae9c21b9a26dd9bb2d5a54838e9"),
    Source(
        "pendigits", "Pendigits", 10, 32, "0975b5d9e21bdd63c67ed6232f54156773168ba420f6557ef9513fbd32d7b62d"
    ),
    Source(
        "satimage",
        "Satimage",
        6,
        182,
        "36b299884ad788b83e025736a097f91d02dcce00010e20fde1257fdd91aecb18",
        notes="6,435 rows in the stored copy, 6,430 on OpenML",
    ),
    Source("vehicle", "Vehicle", 4, 54, "89e359953d076fe2893273b281824234c7e56ecac18d9b55d05cb4a5b305cfaf"),
    Source(
        "mnist",
        "MNIST",
        10,
        554,
        "4220a472ba93910c061cb13b0d0dfb4316c745a06b581b7a3ed5c773b357df93",
        shape=(28, 28),
        n_rows=70_000,
        n_test=10_000,
    ),
    Source(
        "kmnist",
        "KMNIST",
        10,
        41982,
        "63830196018147828ffebf296db442fc720160a60046c7d382153dd1bb1b36cd",
        shape=(28, 28),
        n_rows=70_000,
        n_test=10_000,
        partial=True,
        notes="the stored copy has 7,010 of 60,000 training images",
    ),
    Source(
        "fashion-mnist",
        "Fashion-MNIST",
        10,
        40996,
        "869c754ccb55dedc8942073513290d95dbb3f4c9acf786303b4d43f5939920ca",
        shape=(28, 28),
        n_rows=70_000,
        n_test=10_000,
        notes="the stored copy has a new random split",
    ),
    Source(
        "svhn",
        "SVHN",
        10,
        41081,
        None,
        kind="image",
        shape=(32, 32, 3),
        n_rows=99_289,
        n_test=26_032,
        notes="the last 26,032 OpenML rows are taken as the test set",
    ),
    Source(
        "cifar10",
        "CIFAR10",
        10,
        40927,
        None,
        kind="image",
        shape=(3, 32, 32),
        n_rows=60_000,
        n_test=10_000,
        balanced=True,
        notes="the last 10,000 OpenML rows are taken as the test set",
    ),
    Source(
        "cifar10-s",
        "CIFAR10-s",
        10,
        None,
        "c52fb84aa1ad7d50f6b38ba8d575e48485bd49057949d5b2846b53274de4a76f",
        kind="image",
        where="a tenth of the training images of cifar10, 500 a class, and its whole test set",
    ),
    Source(
        "cifar100",
        "CIFAR100",
        100,
        None,
        None,
        kind="image",
        where="https://www.cs.toronto.edu/~kriz/cifar.html (OpenML 41983: its row layout is not known here)",
    ),
    Source(
        "splice-binary",
        None,
        2,
        None,
        "0b126575f4ba255d07aa1f3c578f8fe37f6b1ad14d0bf5185e9d9ff0d0ae9757",
        where=f"{LIBSVM}, splice and splice.t",
        notes="integer codes 1 to 4; its error agrees with the published one",
    ),
    Source(
        "waveform-21",
        None,
        3,
        None,
        "b095212344bff9a34f5eff2eb73742efde030d2f6feb8ad9c69bcf94e3a46b36",
        where="UCI waveform data, version 1",
        notes="21 features, standardised by its source",
    ),
    Source(
        "svhn-s",
        None,
        10,
        None,
        "047fa814617225d31ffc92bfbdc7643911ba6d76ae4264efc43e62c6f76a4800",
        kind="image",
        where="5,000 training and 3,000 test digits of svhn, cut anew from the full numbers",
    ),
    Source(
        "cifar100-s",
        None,
        100,
        None,
        "21212bd6a7546bdb9e08103e1eceb70c50f6bfafd6ec9e73b49520c663dfdf7c",
        kind="image",
        where="50 training and 40 test images of each class of cifar100",
    ),
]

REGISTRY = {source.name: source for source in _SOURCES}
"""Every data set by name."""
