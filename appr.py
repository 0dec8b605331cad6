import os

import mongoq

if os.fork() == 0:
    pass


def handle(p):
    print("got", p, flush=True)


def make(broker: mongoq.Broker):
    w = mongoq.Worker(broker)
    w.consumer("orders")(handle)
    return w
