"""Objects by boto3 with the bucket in the name of the host; compared each time.

usage: virtual.py URL CERTIFICATE MOUNT, with the key alone on a line of standard input; URL has the domain. Prints what is
wrong, and exits with 1 then.
"""

import os
import sys
from urllib.parse import urlsplit

from boto3.s3.transfer import TransferConfig

from s3_client import s3_client

url, certificate, mount = sys.argv[1:]
key = sys.stdin.readline().strip()
bad = []


def check(what, holds):
    if not holds:
        bad.append(what)


client = s3_client(url, certificate, key, "virtual")
hosts = []
client.meta.events.register("before-send.s3", lambda request, **_: hosts.append(urlsplit(request.url).netloc))
place = urlsplit(url).netloc
content = os.urandom(9_000_001)
client.create_bucket(Bucket="hosted")
check("the bucket is in the host", hosts[-1] == f"hosted.{place}")
check("it is a directory", os.path.isdir(f"{mount}/hosted"))
client.put_object(Bucket="hosted", Key="plain", Body=content)
with open(f"{mount}/hosted/plain", "rb") as file:
    check("an object is a file", file.read() == content)
client.put_object(Bucket="hosted", Key="a/b c+d", Body=b"small")
check("its content", client.get_object(Bucket="hosted", Key="a/b c+d")["Body"].read() == b"small")
check("a range", client.get_object(Bucket="hosted", Key="plain", Range="bytes=5-9")["Body"].read() == content[5:10])
parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
with open("/dev/shm/bivouac-hosted", "wb") as file:
    file.write(content)
client.upload_file("/dev/shm/bivouac-hosted", "hosted", "parts", Config=parts)
os.remove("/dev/shm/bivouac-hosted")
check("parts are put together", client.get_object(Bucket="hosted", Key="parts")["Body"].read() == content)
client.copy_object(Bucket="hosted", Key="copy", CopySource={"Bucket": "hosted", "Key": "parts"})
keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="hosted")["Contents"]]
check("all are listed", keys == ["a/b c+d", "copy", "parts", "plain"])
check("buckets are listed", "hosted" in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]])
check("without a bucket in the host", hosts[-1] == place)
by_path = s3_client(url, certificate, key)
check("by the path, too", by_path.get_object(Bucket="hosted", Key="copy")["Body"].read() == content)
client.delete_objects(Bucket="hosted", Delete={"Objects": [{"Key": name} for name in keys]})
client.delete_bucket(Bucket="hosted")
check("what is gone is gone", not os.path.exists(f"{mount}/hosted"))
print("\n".join(f"virtual: {what}" for what in bad))
sys.exit(bool(bad))
