"""If a new producer has fenced an old producer, the old producer stays fenced. This is true for each version
of the transaction protocol."""

import pytest
from transaction_model import TransactionModel

from moldau.runtime import ErrorCode, KafkaError


@pytest.mark.parametrize("version", [0, 2])
def test_a_fenced_producer_cannot_initialize_itself_again(version: int) -> None:
    model = TransactionModel()
    answer = model.init("a")
    zombie = (answer.producer_id, answer.producer_epoch)
    model.add("a", zombie, [("t", 0)], version=version)
    assert model.init("a").error is ErrorCode.concurrent_transactions
    model.complete()
    with pytest.raises(KafkaError) as refused:
        model.init("a", expected=zombie)
    assert refused.value.code is ErrorCode.producer_fenced
    assert model.init("a").error is ErrorCode.none
