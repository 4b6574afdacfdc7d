"""Writes the golden files of firebox-text: tiny models of every family, and tokenizers of every kind.

    python golden.py [FOLDER]

The models are those of `transformers`, with random weights and the true architecture; beside each lie
hidden states of padded texts, computed in float64. The tokenizers are made with `tokenizers`; beside
each lie the numbers and places of the tokens of difficult texts. Needs PyTorch, transformers and
tokenizers from PyPI. Without a folder the files are written beside this script.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SIZES = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
LENGTHS = [11, 4, 1, 7]


def configurations():
    t = transformers
    yield "bert", t.BertConfig(**SIZES, max_position_embeddings=12), t.BertForPreTraining
    yield "roberta", t.RobertaConfig(**SIZES, max_position_embeddings=14, type_vocab_size=1, pad_token_id=1), t.RobertaForMaskedLM
    yield "xlm-roberta", t.XLMRobertaConfig(**SIZES, max_position_embeddings=14, type_vocab_size=1, layer_norm_eps=1e-5), t.XLMRobertaModel
    yield "electra", t.ElectraConfig(**SIZES, embedding_size=8, max_position_embeddings=12), t.ElectraForPreTraining
    yield "distilbert", t.DistilBertConfig(vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=12), t.DistilBertModel
    deberta = dict(**SIZES, max_position_embeddings=12, type_vocab_size=0, relative_attention=True, position_biased_input=False, layer_norm_eps=1e-7)
    yield "deberta-v3", t.DebertaV2Config(**deberta, position_buckets=4, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"]), t.DebertaV2Model
    yield "deberta-v2", t.DebertaV2Config(**deberta, share_att_key=False, pos_att_type=["c2p"]), t.DebertaV2Model
    yield "longformer", t.LongformerConfig(**SIZES, max_position_embeddings=14, type_vocab_size=1, pad_token_id=1, attention_window=[4, 6]), t.LongformerModel


def family(folder, name, config, kind):
    torch.manual_seed(sum(map(ord, name)))
    config._attn_implementation = "eager"
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases that are not what they start as, and weights large enough to matter.
            parameter.copy_(parameter + (0.2 if parameter.dim() == 1 else 0.3) * torch.randn_like(parameter))
    time = max(LENGTHS)
    tokens = torch.randint(3, 60, (len(LENGTHS), time))
    mask = (torch.arange(time)[None] < torch.tensor(LENGTHS)[:, None]).long()
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    tokens = torch.where(mask.bool(), tokens, torch.tensor(pad))
    folder = folder / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    extra = {}
    if name == "longformer":
        extra["global_attention_mask"] = torch.zeros_like(mask).index_fill(1, torch.tensor([0]), 1)
    with torch.no_grad():
        base = model.double().base_model
        hidden = base(input_ids=tokens, attention_mask=mask, **extra).last_hidden_state
    expected = {"tokens": tokens.numpy(), "lengths": np.array(LENGTHS), "hidden": hidden.numpy().astype(np.float32)}
    save_file(expected, folder / "expected.safetensors")


TEXTS = [
    "The quick brown fox can't jump over 13 lazy dogs!",
    "  Naïve café, déjà-vu…   Ångström\tØ\n\nend ",
    "数学 is fun: 中文 and English (mixed) – ok?",
    "unaffordable unbelievable preprocessing tokenisation",
    "emoji 😀 family 👩‍👩‍👧 and zero\u200bwidth \u0007bell",
    "ﬁne ligature, ① Ⅳ ½ ２３",
    "[CLS] looks special <s> here </s> <mask>[MASK] too",
    "I'll we're it's you've I'd I'm 'tis",
    "",
    "   ",
    "word " * 4 + "supercalifragilisticexpialidocious" * 4,
    "ΑΣ Σίσυφος İstanbul ß ẞ",
]


def tokenizer(folder, name, made):
    # Added tokens and truncation of the saved file must not decide anything here.
    made.save(str(folder / f"{name}.json"), pretty=False)
    found = []
    for text in TEXTS:
        encoding = made.encode(text)
        bytes_at = np.cumsum([0] + [len(c.encode()) for c in text])
        found.append({
            "text": text, "ids": encoding.ids, "special": encoding.special_tokens_mask,
            "offsets": [[int(bytes_at[a]), int(bytes_at[b])] for a, b in encoding.offsets],
        })
    (folder / f"{name}.expected.json").write_text(json.dumps(found, ensure_ascii=False, indent=0) + "\n")


def corpus():
    return TEXTS[:5] + TEXTS[7:8] + ["the fox and the dog jump", "preprocessing unaffordable things", "naive cafe deja vu math"] * 3


def tokenizers(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, lowercase in [("wordpiece", True), ("wordpiece-cased", False)]:
        bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        bert.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        bert.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False))
        bert.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", bert.token_to_id("[CLS]")), ("[SEP]", bert.token_to_id("[SEP]"))])
        bert.decoder = decoders.WordPiece()
        tokenizer(folder, name, bert)

    roberta = Tokenizer(models.BPE())
    roberta.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    roberta.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    roberta.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False, trim_offsets=True)
    tokenizer(folder, "byte-level", roberta)

    # A character map in SentencePiece's form is taken from a real model; here the rules are spelt out.
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    unigram.train_from_iterator(corpus(), trainers.UnigramTrainer(vocab_size=160, special_tokens=special, unk_token="<unk>", show_progress=False))
    unigram.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer(folder, "unigram", unigram)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "golden"
    for name, config, kind in configurations():
        family(root, name, config, kind)
    tokenizers(root / "tokenizers")
