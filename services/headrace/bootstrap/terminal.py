"""The commands that talk to a running cluster: configuration in, one terminal command out."""

from headrace.config import ChatConfig, ExplainConfig, HealthConfig, StatusConfig
from headrace.terminal import chat, explain, health, status


def run_chat(config: ChatConfig) -> int:
    key = config.api_key.get_secret_value()
    return chat.talk(
        chat.ChatOptions(config.url, key, config.message, config.model, config.temperature, config.max_tokens)
    )


def run_status(config: StatusConfig) -> int:
    key = config.api_key.get_secret_value()
    return status.show(status.StatusOptions(config.url, key, config.json_output))


def run_explain(config: ExplainConfig) -> int:
    key = config.api_key.get_secret_value()
    return explain.show(explain.ExplainOptions(config.url, key, config.request, config.json_output))


def run_health(config: HealthConfig) -> int:
    return health.ask(health.HealthOptions(config.address, config.timeout_s))
