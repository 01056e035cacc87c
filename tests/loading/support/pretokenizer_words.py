"""Words that pre-tokenizers cut texts into, joined by "|", by their GGUF names.

Recorded where llama.cpp cut 1083 random texts as the expressions did, or where its own are simpler
than those of tokenizer.json, which count: it knows no case beyond ASCII, and no marks.
"""

TEXTS = (
    "It's  HE'LL'D don't\n\n \tx==$y// 12345 3.14\r\n",
    "`a_B` camelCase 中文ひら한국 é! \u3000 (…) नु",
    "Ada'da 'S!!\n\n           z  \n\n9/\n",
)

WORDS: dict[tuple[str, ...], tuple[str, str, str]] = {
    (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "dbrx",
        "smaug-bpe",
        "chatglm-bpe",
        "glm4",
        "glm5",
        "minicpm5",
    ): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |123|45| |3|.|14|\r\n",
        "`a|_B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| न|ु",
        "Ada|'d|a| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("jais-2",): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |123|45| |3|.|14|\r\n",
        "`a|_B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| न|ु",
        "Ada|'d|a| '|S|!!\n\n|        |  | z|  \n\n|9|/\n",
    ),
    (
        "qwen2",
        "deepseek-r1-qwen",
        "megrez",
        "stablelm2",
        "kormo",
        "f2llmv2",
        "hunyuan",
        "solar-open",
        "grok-2",
        "bailingmoe",
        "bailingmoe2",
        "llada-moe",
    ): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`a|_B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| न|ु",
        "Ada|'d|a| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("qwen35",): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`a|_B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| नु",
        "Ada|'d|a| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("laguna",): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r|\n",
        "`a|_B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| न|ु",
        "Ada|'d|a| '|S|!!|\n\n|          | z|  |\n\n|9|/|\n",
    ),
    ("ufakzeka",): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`a|_B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| न|ु",
        "Ada|'da| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("seed-coder",): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`a|_B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| न|ु",
        "Ada|'d|a| '|S|!!|\n\n|          | z|  \n\n|9|/|\n",
    ),
    ("exaone-moe",): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`a|_B|`| camelCase 中文ひら한국 é|!| \u3000| (…)| नु",
        "Ada|'d|a| '|S|!!\n|\n|          | z|  \n\n|9|/\n",
    ),
    (
        "smollm",
        "starcoder",
        "refact",
        "codeshell",
        "exaone",
        "minerva-7b",
        "mellum2",
        "command-r",
    ): (
        "It|'s| | HE|'|LL|'|D| don|'t|\n\n |\t|x|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`|a|_|B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| न|ु",
        "Ada|'d|a| '|S|!!|\n\n          | z|  \n\n|9|/|\n",
    ),
    (
        "gpt-2",
        "phi-2",
        "jais",
        "trillion",
        "granite-docling",
        "gigachat",
        "a.x-4.0",
        "mellum",
        "exaone4",
        "modern-bert",
        "roberta-bpe",
        "jina-es",
        "jina-de",
        "jina-v1-en",
        "jina-v2-code",
        "jina-v2-de",
        "jina-v2-es",
        "mpt",
        "olmo",
    ): (
        "It|'s| | HE|'|LL|'|D| don|'t|\n\n |\t|x|==$|y|//| 12345| 3|.|14|\r\n",
        "`|a|_|B|`| camelCase| 中文ひら한국| é|!| \u3000| (…)| न|ु",
        "Ada|'d|a| '|S|!!|\n\n          | z|  \n|\n|9|/|\n",
    ),
    ("falcon",): (
        "It|'|s| | HE|'|LL|'|D| don|'|t|\n\n |\t|x|==$|y|//| |123|45| 3|.|14|\r\n",
        "`|a|_|B|`| camelCase| 中文ひら한국| é|!| \u3000 |(…)| न|ु",
        "Ada|'|da| |'|S|!!|\n\n          | z|  \n|\n|9|/|\n",
    ),
    ("tekken",): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`a|_B|`| camel|Case| 中文ひら한국| é|!| \u3000| (…)| नु",
        "Ada|'da| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"): (
        "It's| | HE'LL|'D| don't|\n\n| |\tx|==$|y|//| |123|45| |3|.|14|\r\n",
        "`a|_B|`| camel|Case| 中文ひら한국| é|!| \u3000| (…)| नु",
        "Ada'd|a| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("kimi-k2",): (
        "It's| | HE'LL|'D| don't|\n\n| |\tx|==$|y|//| |123|45| |3|.|14|\r\n",
        "`a|_B|`| camel|Case| |中文|ひら한국| é|!| \u3000| (…)| नु",
        "Ada'd|a| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("youtu",): (
        "It's| | HE'LL|'D| don't|\n\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`a|_B|`| camel|Case| |中文ひら|한국| é|!| \u3000| (|…|)| नु",
        "Ada'd|a| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("deepseek-llm",): (
        "It|'|s| | HE|'|LL|'|D| don|'|t|\n|\n| |\tx|==$|y|//| |12345| |3|.|14|\r|\n",
        "`|a|_|B|`| camelCase| |中文ひら한국| é|!| |\u3000| (|…|)| |नु",
        "Ada|'|da| '|S|!!|\n|\n|          | z|  |\n|\n|9|/|\n",
    ),
    ("deepseek-coder",): (
        "It|'|s| | HE|'|LL|'|D| don|'|t|\n|\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r|\n",
        "`|a|_|B|`| camelCase| |中文ひら한국| é|!| |\u3000| (|…|)| |न|ु",
        "Ada|'|da| '|S|!!|\n|\n|          | z|  |\n|\n|9|/|\n",
    ),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): (
        "It|'s| | HE|'LL|'D| don|'t|\n\n| |\tx|==$|y|//| |123|45| |3|.|14|\r\n",
        "`a|_B|`| camelCase| |中文ひら|한국| é|!| \u3000| (…)| नु",
        "Ada|'da| '|S|!!\n\n|          | z|  \n\n|9|/\n",
    ),
    ("spark2_5",): (
        "It|'s| | HE|'LL|'D| don|'t|\n|\n| |\tx|==$|y|//| |1|2|3|4|5| |3|.|1|4|\r|\n",
        "`a|_B|`| camelCase| |中文ひら|한국| é|!| \u3000| (…)| नु",
        "Ada|'da| '|S|!!|\n|\n|          | z|  \n\n|9|/|\n",
    ),
    ("bloom", "poro-chat", "gpt3-finnish"): (
        "It's| | HE'LL'D| don't|\n\n \t|x==$y//| 12345| 3|.|14|\r\n",
        "`a_B`| camelCase| 中文ひら한국| é|! \u3000 (…)| नु",
        "Ada'da| 'S|!!\n\n          | z|  \n\n|9/|\n",
    ),
    ("viking",): (
        "It's| | HE'LL'D| don't|\n\n \t|x==$y//| |1|2|3|4|5| |3|.|1|4|\r\n",
        "`a_B`| camelCase| 中文ひら한국| é|! \u3000 (…)| नु",
        "Ada'da| 'S|!!\n\n          | z|  \n\n|9|/|\n",
    ),
    ("default",): (
        "It|'|s| | HE|'|LL|'|D| don|'|t|\n\n |\t|x|==$|y|//| |123|45| |3|.|14|\r\n",
        "`|a|_|B|`| camelCase| 中文ひら한국| é|!| \u3000 |(…)| न|ु",
        "Ada|'|da| |'|S|!!|\n\n          | z|  \n|\n|9|/|\n",
    ),
}
