"""Chemical reactions: the ALBERT of rxnmapper and the BERTs of rxnfp, which read SMILES token by token."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from ci.lab.trained.case import Arrays, Case, Run, case
from ci.lab.trained.fetch import CACHE

RXNMAPPER, RXNFP = "rxnmapper==0.4.3", "rxnfp==0.1.0"
_TOKEN = re.compile(
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)
#: reactions with the atoms that rxnmapper's authors and its tests map
MAPPED = (
    "CN(C)C=O.F[c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11].O=C([O-])[O-].[CH3:1][CH:2]([CH3:3])[SH:4].[K+].[K+]>>"
    "[CH3:1][CH:2]([CH3:3])[S:4][c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11]",
    "C1COCCO1.CC(C)(C)[O:3][C:2](=[O:1])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10][c:11]1[cH:12][cH:13][cH:14]"
    "[c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12.Cl>>[O:1]=[C:2]([OH:3])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10]"
    "[c:11]1[cH:12][cH:13][cH:14][c:15]2[cH:16][cH:17][cH:18][cH:19][c:20]12",
    "S=[C:17]=[N:4][CH2:3][CH:2]=[CH2:1].[NH:18]([CH3:19])[CH2:20][c:21]1[cH:22][cH:23][c:24]([C:25]#[N:26])[cH:27]"
    "[cH:28]1.O=[C:5]([c:6]1[cH:7][n:8]2[c:9]([n:10]1)[CH2:11][CH2:12][CH2:13][CH2:14]2)[NH:15][NH2:16]>>[CH2:1]=[CH:2]"
    "[CH2:3][n:4]1[c:5](-[c:6]2[cH:7][n:8]3[c:9]([n:10]2)[CH2:11][CH2:12][CH2:13][CH2:14]3)[n:15][n:16][c:17]1[N:18]"
    "([CH3:19])[CH2:20][c:21]1[cH:22][cH:23][c:24]([C:25]#[N:26])[cH:27][cH:28]1",
)
#: what organic chemists do every day: amides, esters, ethers, Suzuki, Buchwald, reductions, protection
REACTIONS = (
    "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1>>O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1",
    "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F",
    "C1COCCO1.CC(C)(C)OC(=O)CONC(=O)NCc1cccc2ccccc12.Cl>>O=C(O)CONC(=O)NCc1cccc2ccccc12",
    "CCN.ClCCl.O=C(Cl)c1ccccc1>>CCNC(=O)c1ccccc1",
    "CO.O=C(O)c1ccc(Br)cc1.O=S(=O)(O)O>>COC(=O)c1ccc(Br)cc1",
    "CCOC(=O)c1ccc(F)cc1.O.[Li+].[OH-]>>O=C(O)c1ccc(F)cc1",
    "BrCc1ccccc1.CN(C)C=O.O=C([O-])[O-].Oc1ccccc1.[K+].[K+]>>c1ccc(COc2ccccc2)cc1",
    "Brc1ccccn1.OB(O)c1ccccc1.O=C([O-])[O-].[Na+].[Na+]>>c1ccc(-c2ccccn2)cc1",
    "COc1ccc(B(O)O)cc1.Cc1ccc(Br)cc1.c1ccc(P(c2ccccc2)c2ccccc2)cc1>>COc1ccc(-c2ccc(C)cc2)cc1",
    "C1COCCN1.Clc1ccncc1>>c1cc(N2CCOCC2)ccn1",
    "CO.O=[N+]([O-])c1ccc(F)cc1.[H][H].[Pd]>>Nc1ccc(F)cc1",
    "CC(=O)c1ccccc1.CO.[BH4-].[Na+]>>CC(O)c1ccccc1",
    "CC(C)(C)OC(=O)N1CCNCC1.CC(=O)Cl.CCN(CC)CC.ClCCl>>CC(=O)N1CCN(C(=O)OC(C)(C)C)CC1",
    "CC(=O)N1CCN(C(=O)OC(C)(C)C)CC1.ClCCl.O=C(O)C(F)(F)F>>CC(=O)N1CCNCC1",
    "CC(C)(C)OC(=O)OC(=O)OC(C)(C)C.ClCCl.NCc1ccccc1>>CC(C)(C)OC(=O)NCc1ccccc1",
    "CC(C)[Mg]Br.C1CCOC1.O=Cc1ccccc1>>CC(C)C(O)c1ccccc1",
    "CCO.NO.O=Cc1ccc(Cl)cc1>>ON=Cc1ccc(Cl)cc1",
    "CS(=O)(=O)Cl.CCN(CC)CC.ClCCl.OCCc1ccccc1>>CS(=O)(=O)OCCc1ccccc1",
    "CI.CN(C)C=O.O=C1CCc2ccccc2N1.[H-].[Na+]>>CN1C(=O)CCc2ccccc21",
    "C#Cc1ccccc1.CCN(CC)CC.COC(=O)c1ccc(I)cc1.[Cu]I>>COC(=O)c1ccc(C#Cc2ccccc2)cc1",
    "O=C(O)c1ccccc1.O=S(Cl)Cl>>O=C(Cl)c1ccccc1",
    "CN(C)C=O.N#C[Cu].Brc1ccc2ccccc2c1>>N#Cc1ccc2ccccc2c1",
    "ClC(Cl)Cl.O=C(OO)c1cccc(Cl)c1.c1ccncc1>>[O-][n+]1ccccc1",
    "CC(C)=O.CC(C)O.NC1CCCCC1.[BH3-]C#N.[Na+]>>CC(C)NC1CCCCC1",
)


class Reader:
    """Ids of reactions by a folder's vocab.txt."""

    def __init__(self, folder: Path) -> None:
        words = (folder / "vocab.txt").read_text().splitlines()
        self.ids = {word: number for number, word in enumerate(words)}

    def __call__(self, reaction: str) -> list[int]:
        tokens = ["[CLS]", *_TOKEN.findall(reaction), "[SEP]"]
        return [self.ids.get(token, self.ids["[UNK]"]) for token in tokens]


def call(rows: list[list[int]]) -> Arrays:
    """Ids, padded with zeros, and their mask."""
    ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return {
        "input_ids": ids,
        "attention_mask": (np.arange(ids.shape[1]) < [[len(row)] for row in rows]).astype(np.int64),
    }


def masked(folder: Path, cls: Any) -> Case:
    """A masked language model, asked for every token of every reaction."""
    reader = Reader(folder)
    rows = [reader(reaction) for reaction in REACTIONS]

    def ask(run: Run) -> NDArray[Any]:
        found = []
        for row in rows:
            places = np.arange(1, len(row) - 1)
            asked = call([row] * len(places))
            asked["input_ids"][places - 1, places] = reader.ids["[MASK]"]
            found.append(run(asked)["logits"][places - 1, places].argmax(-1))
        return np.concatenate(found)

    truth = np.array([token for row in rows for token in row[1:-1]])
    options = {"task": "fill-mask", "allow_pickle": True}
    return Case(module=cls.from_pretrained(folder), source=folder, ask=ask, truth=truth, options=options)


def completed(folder: Path) -> Path:
    """A copy of a folder of 2019 with the model_type that its config.json lacks."""
    made = CACHE / "completed" / folder.name
    shutil.copytree(folder, made, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"model_type": "bert"}))
    return made


@case(RXNMAPPER, "the token at each place of 24 reactions")
def rxnmapper_tokens(folder: Path) -> Case:
    return masked(mapper(folder), transformers.AlbertForMaskedLM)


@case(RXNFP, "the token at each place of 24 reactions")
def rxnfp_tokens(folder: Path) -> Case:
    inside = folder / "rxnfp" / "models" / "transformers" / "bert_pretrained"
    return masked(completed(inside), transformers.BertForMaskedLM)


@case(RXNFP, "which of 24 reactions is most alike")
def rxnfp_fingerprints(folder: Path) -> Case:
    inside = completed(folder / "rxnfp" / "models" / "transformers" / "bert_ft")

    rows = call(list(map(Reader(inside), REACTIONS)))

    def ask(run: Run) -> NDArray[Any]:
        vectors = run(rows)["last_hidden_state"][:, 0]
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors @ vectors.T - 2 * np.eye(len(vectors))).argmax(1)

    model = transformers.BertModel.from_pretrained(inside)
    return Case(module=model, source=inside, ask=ask, options={"task": "features", "allow_pickle": True})


@case(RXNFP, "the class of 24 reactions")
def rxnfp_classes(folder: Path) -> Case:
    # num_labels is 50, id2label has the 2 entries that transformers fills in: posexport reads the head's weight
    inside = folder / "rxnfp" / "models" / "transformers" / "bert_ft_10k_25s"
    rows = call(list(map(Reader(inside), REACTIONS)))
    model = transformers.BertForSequenceClassification.from_pretrained(inside, num_labels=50)
    return Case(
        module=model, source=inside, ask=lambda run: run(rows)["logits"].argmax(-1), options={"allow_pickle": True}
    )


#: what rxnmapper reads: layer 10, head 5
ATTENTION = "attentions.10.5"


class AtomMap(nn.Module):
    """Returns the attention that rxnmapper reads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        attentions = self.model(input_ids, attention_mask, output_attentions=True).attentions
        return {ATTENTION: attentions[10][:, 5]}


@case(RXNMAPPER, "the atom of the reactants that each atom of a product was")
def rxnmapper_atoms(folder: Path) -> Case:
    model = transformers.AlbertModel.from_pretrained(mapper(folder), attn_implementation="eager")
    reader = Reader(mapper(folder))
    plain = [unmapped(reaction) for reaction in MAPPED]
    pairs = [list(atoms(reaction)) for reaction in MAPPED]

    def ask(run: Run) -> NDArray[Any]:
        """Of each product atom the reactant atom of the same element that it attends to most."""
        found = []
        for reaction, mapped in zip(plain, pairs, strict=True):
            attention = run(call([reader(reaction)]))[ATTENTION][0]
            elements = [token.strip("[]+-H").upper() for token in ("", *_TOKEN.findall(reaction))]
            for place, _ in mapped:
                same = [at for at in range(elements.index(">>")) if elements[at] == elements[place]]
                found.append(same[int(attention[place, same].argmax())])
        return np.array(found)

    truth = np.array([before for mapped in pairs for _, before in mapped])
    options = {"task": "features", "allow_pickle": True, "outputs": ["attentions:10.5"]}
    return Case(module=AtomMap(model), source=mapper(folder), ask=ask, truth=truth, options=options)


def mapper(folder: Path) -> Path:
    return folder / "rxnmapper" / "models" / "transformers" / "albert_heads_8_uspto_all_1310k"


def unmapped(reaction: str) -> str:
    """A reaction without numbers of atoms; atoms of the organic subset without brackets."""
    return re.sub(r"\[([A-Za-z][a-z]?)H?[0-9]?:[0-9]+\]", r"\1", reaction)


def atoms(reaction: str) -> Iterator[tuple[int, int]]:
    """The places in the tokens of each mapped product atom and of the reactant atom with its number."""
    tokens = ["[CLS]", *_TOKEN.findall(reaction)]
    end = tokens.index(">>")
    numbers = [found and found[1] for found in (re.search(r":([0-9]+)\]", token) for token in tokens)]
    before = {number: place for place, number in enumerate(numbers[:end]) if number}
    return ((place, before[number]) for place, number in enumerate(numbers) if place > end and number in before)
