"""Something to try the commands on: `tickets.csv`, support tickets with a column of tools, and `tiny-qwen3`, a model.

    python examples/tickets.py [FOLDER]

The model is a Qwen3 of two layers with random weights, for which there is nothing to download but the tokenizer of the
packaged model. It learns in seconds, and never any English.
"""

import csv
import json
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from posttrain.models.packaged import pull

TICKETS = 40
FIND_ORDER = {
    "type": "function",
    "function": {
        "name": "find_order",
        "description": "Look up an order.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}
# Qwen's format of tools, without its instructions: <tools> in the system message, <tool_call> around JSON.
TEMPLATE = """\
{%- if tools -%}
    {{ '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools -%}{{ '\\n' ~ tool | tojson }}{%- endfor -%}
    {{ '\\n</tools><|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
    {{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content }}
    {%- for call in message.tool_calls or [] -%}
        {{ '\\n<tool_call>\\n' ~ call.function | tojson ~ '\\n</tool_call>' }}
    {%- endfor -%}
    {{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def write_tickets(path: Path) -> None:
    """A header and `TICKETS` rows: ticket, reply, and the tools as JSON."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("ticket", "reply", "tools"))
        for day in range(1, TICKETS + 1):
            number = 999 + day
            reply = f"Order {number} left our warehouse on day {day}."
            rows.writerow((f"Where is order {number}?", reply, json.dumps([FIND_ORDER])))


def write_model(folder: Path) -> None:
    """Weights, configuration, tokenizer and chat template, as `from_pretrained` reads them."""
    tokenizer = AutoTokenizer.from_pretrained(pull("smollm2-135m-instruct"))
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
        **sizes,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(folder: Path) -> None:
    """Both, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tickets(folder / "tickets.csv")
    write_model(folder / "tiny-qwen3")
    print(f"{folder / 'tickets.csv'}: {TICKETS} rows; {folder / 'tiny-qwen3'}: a Qwen3 with random weights")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
