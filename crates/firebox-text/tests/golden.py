"""Writes the golden files of firebox-text: tiny models of every family, and tokenizers of every kind.

    python golden.py [FOLDER]

The models are those of `transformers`, with random weights and the true architecture; beside each lie
hidden states of padded texts, computed in float64. The tokenizers are made with `tokenizers`; beside
each lie the numbers and places of the tokens of difficult texts. Needs PyTorch, transformers,
tokenizers, sentencepiece and protobuf from PyPI. Without a folder the files are written beside this script.
"""

import io
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import sentencepiece as spm
import torch
import transformers
from safetensors.numpy import load_file, save_file
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

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
    base = model.double().base_model
    hidden = base(input_ids=tokens, attention_mask=mask, **extra).last_hidden_state
    # A sum over valid tokens whose weights all differ, so that every gradient does.
    weights = torch.cos(torch.arange(hidden.numel())).reshape(hidden.shape).double() * mask[..., None]
    (hidden * weights).sum().backward()
    f32 = lambda tensor: tensor.detach().numpy().astype(np.float32)
    save_file({
        "tokens": tokens.numpy(), "lengths": np.array(LENGTHS), "hidden": f32(hidden),
        "gradient": f32(base.get_input_embeddings().weight.grad),
    }, folder / "expected.safetensors")


class Heads(torch.nn.Module):
    """R5's heads: pooling and labels, and both ends of the evidence."""

    def __init__(self, base, pooling):
        super().__init__()
        self.base, self.pooling = base, pooling
        self.attention, self.criteria, self.span = [torch.nn.Linear(16, n) for n in (1, 3, 2)]

    def forward(self, tokens, mask):
        hidden = self.base(input_ids=tokens, attention_mask=mask).last_hidden_state
        seen = mask[..., None].bool()
        weights = torch.softmax(self.attention(hidden).masked_fill(~seen, -1e30), 1)
        pooled = {
            "cls": lambda: hidden[:, 0],
            "mean": lambda: (hidden * seen).sum(1) / seen.sum(1),
            "max": lambda: hidden.masked_fill(~seen, -1e30).max(1).values,
            "attention": lambda: (hidden * weights).sum(1),
        }[self.pooling]()
        return self.criteria(pooled), self.span(hidden).masked_fill(~seen, -1e30)


def heads(folder):
    """Scores, loss and gradients of the heads on the tiny BERT."""
    saved = load_file(folder / "bert/expected.safetensors")
    tokens, lengths = torch.tensor(saved["tokens"]), torch.tensor(saved["lengths"])
    mask = (torch.arange(tokens.shape[1])[None] < lengths[:, None]).long()
    truth = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 0]]).double()
    first, last = torch.tensor([2, 1, -100, 3]), torch.tensor([5, 1, -100, 6])
    positive = torch.tensor([1.0, 2.0, 0.5]).double()
    f32 = lambda tensor: tensor.detach().numpy().astype(np.float32)
    tensors = {}
    for pooling in ["cls", "mean", "max", "attention"]:
        torch.manual_seed(5)
        base = transformers.BertForPreTraining.from_pretrained(folder / "bert").base_model
        model = Heads(base, pooling).eval().double()
        with torch.no_grad():
            for linear in (model.attention, model.criteria, model.span):
                for parameter in linear.parameters():
                    parameter.copy_((0.5 * torch.randn_like(parameter)).float().double())
        labels, span = model(tokens, mask)
        cross = lambda side, target: torch.nn.functional.cross_entropy(span[..., side], target, reduction="sum")
        evidence = (cross(0, first) + cross(1, last)) / 2 / len(truth)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(labels, truth, pos_weight=positive) + 0.5 * evidence
        loss.backward()
        layer = base.encoder.layer[0].attention.self
        tensors[f"{pooling}.labels"], tensors[f"{pooling}.loss"] = f32(labels), f32(loss)[None]
        gradients = {
            "encoder.tokens.weight": base.embeddings.word_embeddings.weight.grad,
            "encoder.layers.0.attention.in_proj_weight": torch.cat([l.weight.grad for l in (layer.query, layer.key, layer.value)]),
            "criteria.weight": model.criteria.weight.grad, "span.weight": model.span.weight.grad,
        }
        if pooling == "attention":
            gradients["attention.weight"] = model.attention.weight.grad
        for name, gradient in gradients.items():
            tensors[f"{pooling}.grad.{name}"] = f32(gradient)
    for name, linear in [("attention", model.attention), ("criteria", model.criteria), ("span", model.span)]:
        tensors[f"param.{name}.weight"], tensors[f"param.{name}.bias"] = f32(linear.weight), f32(linear.bias)
    save_file(tensors, folder / "heads.safetensors")


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
    "A\u030angstrom a\u3000b … <mask>  ﬁne fine",
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


def character_map():
    """A map of a few characters, as SentencePiece compiles it."""
    with tempfile.TemporaryDirectory() as folder:
        rules, model = pathlib.Path(folder) / "rules.tsv", io.BytesIO()
        rules.write_text("FB01\t66 69\nFF12\t32\n2026\t2E 2E 2E\n41 30A\tC5\n3000\t20\n2460\t31\n")
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()), model_writer=model, vocab_size=100, hard_vocab_limit=False,
            normalization_rule_tsv=str(rules), minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


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

    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    unigram.train_from_iterator(corpus(), trainers.UnigramTrainer(vocab_size=160, special_tokens=special, unk_token="<unk>", show_progress=False))
    unigram.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer(folder, "unigram", unigram)

    # As XLM-RoBERTa's and DeBERTa-v3's: SentencePiece's own map of characters, here a small one.
    unigram.normalizer = normalizers.Sequence([normalizers.Precompiled(character_map()), normalizers.Replace(Regex(" {2,}"), " ")])
    unigram.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")])
    unigram.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    unigram.add_tokens([AddedToken("ﬁne", normalized=True)])
    tokenizer(folder, "character-map", unigram)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "golden"
    for name, config, kind in configurations():
        family(root, name, config, kind)
    heads(root)
    tokenizers(root / "tokenizers")
