import pytest, trio
from tests.processes.test_cohorts import *
@bounded(120)
async def test_x(cluster):
    await cluster.start("a", "b")
    await cluster.whole("a", "b")
    left, killed = cluster["a"], cluster["b"]
    async with cluster.client() as client:
        ids = await spread(client, "work", TASKS)
        held = await client.claim(["work"], max=5, lease_ms=LEASE_MS, wait_ms=5_000, worker="patient")
    killed.kill()
    async def alone() -> bool:
        return [one["node"] for one in (await cluster.see(left, "/v1/ring"))["members"]] == [left.node]
    await cluster.until("a ring of one", alone)
    body = {"claims": [{"id": one.id.hex(), "token": one.token} for one in held]}
    claim = {"queues": ["work"], "max": 1, "lease_ms": 1_000, "wait_ms": 0}
    print((await cluster.send(left, "POST", "/v1/claims/complete", body, seconds=20)).text)
    print((await cluster.send(left, "POST", "/v1/claims", claim, seconds=20)).text)
    print((await cluster.send(left, "POST", "/v1/claims/complete", body, seconds=20)).text)
    print([(i, partition_of(c.id), c.token) for i,c in enumerate(held)])
    await cluster.start("b")
    await cluster.whole("a", "b")
    t0=trio.current_time()
    async with cluster.client() as client:
        print('complete', await client.complete(held)); done=set()
        while len(done)<495:
            t=trio.current_time()
            claims = await client.claim(["work"], max=500 - len(done), lease_ms=LEASE_MS, wait_ms=5_000, worker="w")
            t1=trio.current_time()
            await client.complete(claims)
            t2=trio.current_time()
            if t2-t>0.5: print("slow", t1-t, t2-t1, len(claims))
            done |= {c.id for c in claims}
            if trio.current_time()-t0>15:
                print(len(done), await client.count("work"))
                for p in (left, killed):
                    print((await cluster.send(p,"GET","/v1/queues")).text)
                print([(c.worker,c.start_ms,c.end_ms,c.outcome) for i in ids if i not in done for c in (await client.get(i)).claims][:10])
                print(sorted({(partition_of(i)) for i in ids if i not in done}), sorted(set(await cluster.led_by(left,seen_by=left))))
                r = await cluster.see(left,"/v1/log?limit=60")
                for rec in r["records"][-60:]:
                    print(rec["position"], rec["peer"][-4:], [(e["entry"],e["verdict"],str(e["args"])[:150]) for e in rec["entries"]][:6], rec["problem"])
                break
