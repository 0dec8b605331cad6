
import os, mongoq
if os.fork()==0:
    import time
    pass
def handle(p): print("got", p, flush=True)
def make(broker: mongoq.Broker):
    w = mongoq.Worker(broker); w.consumer("orders")(handle); return w
