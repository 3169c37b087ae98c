from topicality.testing.store import StoreContract
class SharedStoreContract(StoreContract):
    pass
