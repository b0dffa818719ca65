"""The default chat format, as a Jinja chat template: ChatML with thinking and tools.

One template serves training, sampling and export: it is saved with the tokenizer, so plain transformers renders the same.

    <|im_start|>system\\n...<|im_end|>\\n       always there, empty if the conversation has none; tools are described at its end
    <|im_start|>user\\n...<|im_end|>\\n
    <|im_start|>assistant\\n<think>\\nreasoning\\n</think>\\nanswer<|im_end|>\\n        in thinking mode
    <|im_start|>assistant\\n<think></think>answer<|im_end|>\\n                      without

The generation prompt is `<|im_start|>assistant\\n<think>\\n`; without thinking it is `<|im_start|>assistant\\n<think></think>`.
Assistant turns before the last user message lose their reasoning (what followed `</think>` stays, newline included); turns of the
current tool loop keep theirs. Tool results stand under the user role, consecutive ones in one block.
"""

from cascade_rl.model.toolcalls import ToolFormat

_HEAD = """\
{%- set ns = namespace(last_user=-1) -%}
{%- for message in messages -%}
  {%- if message.role == "user" -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
"""

_SYSTEM = """\
{%- set system = messages[0].content if messages and messages[0].role == "system" else "" -%}
{{- "<|im_start|>system\\n" + system -}}
{%- if tools -%}
  {{- "\\n\\n" if system else "" -}}
  @TOOLS@
{%- endif -%}
{{- "<|im_end|>\\n" -}}
"""

_MESSAGES = """\
{%- for message in messages -%}
  {%- if message.role == "user" -%}
    {{- "<|im_start|>user\\n" + message.content + "<|im_end|>\\n" -}}
  {%- elif message.role == "tool" -%}
    {{- "<|im_start|>user\\n" if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" else "" -}}
    {{- "<tool_response>\\n" + message.content + "\\n</tool_response>\\n" -}}
    {{- "<|im_end|>\\n" if loop.last or messages[loop.index0 + 1].role != "tool" else "" -}}
  {%- elif message.role == "assistant" -%}
    {{- "<|im_start|>assistant\\n@OPEN@" -}}
    {%- if message.reasoning_content is not defined or message.reasoning_content is none -%}
      {{- "@CLOSE@" -}}
    {%- elif @KEEP@ -%}
      {{- "\\n" + message.reasoning_content + "\\n@CLOSE@\\n" -}}
    {%- else -%}
      {{- "@CLOSE@\\n" -}}
    {%- endif -%}
    {{- message.content or "" -}}
    {%- for call in message.tool_calls or [] -%}
      {{- "\\n" if message.content or not loop.first else "" -}}
      {%- set function = call.function -%}
      @CALL@
    {%- endfor -%}
    {{- "<|im_end|>\\n" -}}
  {%- elif not (message.role == "system" and loop.first) -%}
    {{- raise_exception("a system message can only come first; roles are system, user, assistant and tool") -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- "<|im_start|>assistant\\n@OPEN@" + ("\\n" if enable_thinking is not defined or enable_thinking else "@CLOSE@") -}}
{%- endif -%}
"""

_XML_TOOLS = """\
{%- macro value(x) -%}{{- x if x is string else x | tojson -}}{%- endmacro -%}
{{- "# Tools\\n\\nYou have access to the following functions:\\n\\n<tools>" -}}
{%- for tool in tools -%}
  {%- set function = tool.function or tool -%}
  {%- set schema = function.parameters or {} -%}
  {{- "\\n<function>\\n<name>" + function.name + "</name>" -}}
  {{- "\\n<description>" + function.description + "</description>" if function.description else "" -}}
  {{- "\\n<parameters>" -}}
  {%- for name, field in (schema.properties or {}) | items -%}
    {{- "\\n<parameter>\\n<name>" + name + "</name>" -}}
    {%- for key in ["type", "description", "enum"] if key in field -%}
      {{- "\\n<" + key + ">" + value(field[key]) + "</" + key + ">" -}}
    {%- endfor -%}
    {%- for key, extra in field | items if key not in ["type", "description", "enum"] -%}
      {{- "\\n<" + key + ">" + value(extra) + "</" + key + ">" -}}
    {%- endfor -%}
    {{- "\\n</parameter>" -}}
  {%- endfor -%}
  {%- for key, extra in schema | items if key not in ["type", "properties", "required"] -%}
    {{- "\\n<" + key + ">" + value(extra) + "</" + key + ">" -}}
  {%- endfor -%}
  {{- "\\n<required>" + (schema.required | tojson) + "</required>" if schema.required else "" -}}
  {{- "\\n</parameters>\\n</function>" -}}
{%- endfor -%}
{{- "\\n</tools>\\n\\nIf you choose to call a function ONLY reply in the following format with NO suffix:\\n\\n" -}}
{{- "<tool_call>\\n<function=function_name>\\n<parameter=parameter_name>\\nvalue, over\\nas many lines as it needs\\n" -}}
{{- "</parameter>\\n</function>\\n</tool_call>\\n\\n<IMPORTANT>\\n" -}}
{{- "- A call is one <function=...> block inside <tool_call> tags, with every required parameter.\\n" -}}
{{- "- You may explain a call before it, never after it.\\n" -}}
{{- "- Where no function helps, answer as usual and do not mention functions.\\n</IMPORTANT>" -}}
"""

_HERMES_TOOLS = """\
{{- "# Tools\\n\\nYou have access to the following functions:\\n\\n<tools>" -}}
{%- for tool in tools -%}{{- "\\n" + (tool | tojson) -}}{%- endfor -%}
{{- "\\n</tools>\\n\\nIf you choose to call a function ONLY reply in the following format with NO suffix:\\n\\n" -}}
{{- "<tool_call>\\n{\\"name\\": function name, \\"arguments\\": {parameter name: value}}\\n</tool_call>\\n\\n<IMPORTANT>\\n" -}}
{{- "- A call is one JSON object inside <tool_call> tags, with every required parameter.\\n" -}}
{{- "- You may explain a call before it, never after it.\\n" -}}
{{- "- Where no function helps, answer as usual and do not mention functions.\\n</IMPORTANT>" -}}
"""

_XML_CALL = """\
{{- "<tool_call>\\n<function=" + function.name + ">\\n" -}}
      {%- for name, x in function.arguments | items -%}
        {{- "<parameter=" + name + ">\\n" + (x if x is string else x | tojson) + "\\n</parameter>\\n" -}}
      {%- endfor -%}
      {{- "</function>\\n</tool_call>" -}}"""

_HERMES_CALL = """\
{{- "<tool_call>\\n" + ({"name": function.name, "arguments": function.arguments} | tojson) + "\\n</tool_call>" -}}"""

_TOOLS = {"xml": _XML_TOOLS, "hermes": _HERMES_TOOLS}
_CALL = {"xml": _XML_CALL, "hermes": _HERMES_CALL}


def chat_template(
    tool_format: ToolFormat = "xml", think_open: str = "<think>", think_close: str = "</think>", strip_history: bool = True
) -> str:
    """The Jinja source, for a way to write tool calls, a pair of thinking tags, and whether old reasoning is left out."""
    text = _HEAD + _SYSTEM + _MESSAGES
    text = text.replace("@TOOLS@", _TOOLS[tool_format]).replace("@CALL@", _CALL[tool_format])
    text = text.replace("@KEEP@", "loop.index0 > ns.last_user" if strip_history else "true")
    return text.replace("@OPEN@", think_open).replace("@CLOSE@", think_close)


def tool_block_template(tool_format: ToolFormat = "xml") -> str:
    """The Jinja source of the description of tools alone, for models whose own template has no place for them."""
    return _TOOLS[tool_format]
