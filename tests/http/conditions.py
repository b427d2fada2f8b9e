"""Conditions of S3 requests, and what is kept of an object besides its bytes: by boto3, and by hand where boto3 does not
say it. What is there afterwards is compared each time.

usage: conditions.py URL CERTIFICATE MOUNT, with the key alone on a line of standard input. Prints what is wrong, and
exits with 1 then.
"""

import base64
import datetime
import hashlib
import hmac
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from s3_client import s3_client

url, certificate, mount = sys.argv[1:]
key = sys.stdin.readline().strip()
bad = []
trusted = ssl.create_default_context(cafile=certificate)


class Redirections(urllib.request.HTTPRedirectHandler):
    """Leaves redirections to who asked."""

    def redirect_request(self, *_):
        return None


opener = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted), Redirections
)
credentials = Credentials(key.split(".")[0], key)
client = s3_client(url, certificate, key)
B = "conditions"


def check(what, holds, *shown):
    if not holds:
        bad.append(f"{what} {shown}")


def send(request):
    """Status, headers and body of an answer."""
    try:
        answer = opener.open(request)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()


def ask(method, path, headers=(), body=b""):
    """The same for a request that is signed here."""
    request = AWSRequest(method=method, url=f"{url}/{B}{path}", headers=dict(headers), data=body)
    S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
    made = request.prepare()
    return send(urllib.request.Request(made.url, data=body or None, headers=dict(made.headers), method=method))


def failed(call, **arguments):
    """Code and sentence of the error that a call ends with, or nothing."""
    try:
        call(Bucket=B, **arguments)
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["Error"].get("Message", "")
    return None, None


def put(name, body=b"content", **arguments):
    return client.put_object(Bucket=B, Key=name, Body=body, **arguments)["ETag"]


def got(name, **arguments):
    return client.get_object(Bucket=B, Key=name, **arguments)["Body"].read()


def keys(**arguments):
    page = client.list_objects_v2(Bucket=B, **arguments)
    return [entry["Key"] for entry in page.get("Contents", [])], [
        entry["Prefix"] for entry in page.get("CommonPrefixes", [])
    ]


def conditions_on_targets():
    new = put("source", b"new")
    old = put("target", b"precious")
    copy = {"CopySource": {"Bucket": B, "Key": "source"}, "Key": "target"}
    other = '"00000000000000000000000000000000"'
    for condition in (
        {"IfNoneMatch": "*"},
        {"IfMatch": other},
        {"IfNoneMatch": old},
        {"IfMatch": old, "IfNoneMatch": "*"},
    ):
        check(
            "a copy is refused", failed(client.copy_object, **copy, **condition)[0] == "PreconditionFailed", condition
        )
        check(
            "a PUT is refused",
            failed(client.put_object, Key="target", Body=b"x", **condition)[0] == "PreconditionFailed",
            condition,
        )
        check("the target stays", got("target") == b"precious", condition)
    client.copy_object(Bucket=B, **copy, IfMatch=old)
    check("a copy whose condition holds", got("target") == b"new")
    client.copy_object(Bucket=B, **(copy | {"Key": "free"}), IfNoneMatch="*")
    check("a copy to a free name", got("free") == b"new")
    put("target", b"newer", IfNoneMatch=old)
    check("a PUT over another tag", got("target") == b"newer")
    now = client.head_object(Bucket=B, Key="target")["ETag"]
    status, _, _ = ask("PUT", "/target", {"If-None-Match": f'{now}, "other"'}, b"lost")
    check("several tags", status == 400 and got("target") == b"newer", status)
    check("nothing has the tag", failed(client.put_object, Key="none", Body=b"x", IfMatch=new)[0] == "NoSuchKey")
    status, _, _ = ask("PUT", "/target", {"If-Unmodified-Since": "Sat, 29 Oct 1994 19:43:31 GMT"}, b"lost")
    check("a condition that is not understood", status == 501 and got("target") == b"newer", status)
    for name, value in ("x-amz-write-offset-bytes", "5"), ("Content-Range", "bytes 5-8/9"):
        status, _, _ = ask("PUT", "/target", {name: value}, b"lost")
        check("a part of an object is put", status == 501 and got("target") == b"newer", name, status)
    status, _, _ = ask("PUT", "/target?partNumber=1", {}, b"lost")
    check("a part of no upload", status == 501 and got("target") == b"newer", status)
    status, _, _ = ask("DELETE", "?metadataConfiguration")
    check("another part of a bucket is removed", status == 501 and got("target") == b"newer", status)
    for name in "x-amz-expected-bucket-owner", "x-amz-server-side-encryption-customer-algorithm":
        check(name, ask("GET", "/target", {name: "111122223333"})[0] in (403, 501))


def conditions_on_removal():
    tag = put("k")
    changed = client.head_object(Bucket=B, Key="k")["LastModified"]
    other, old = '"00000000000000000000000000000000"', datetime.datetime(1994, 10, 29, tzinfo=datetime.timezone.utc)
    for one, many in (
        ({"IfMatch": other}, {"ETag": other}),
        ({"IfMatchSize": 99}, {"Size": 99}),
        ({"IfMatchLastModifiedTime": old}, {"LastModifiedTime": old}),
        ({"VersionId": "abc"}, {"VersionId": "abc"}),
    ):
        wanted = "NoSuchVersion" if "VersionId" in one else "PreconditionFailed"
        check("a removal is refused", failed(client.delete_object, Key="k", **one)[0] == wanted, one)
        done = client.delete_objects(Bucket=B, Delete={"Objects": [{"Key": "k", **many}]})
        check("of several, too", [error["Code"] for error in done.get("Errors", [])] == [wanted], many, done)
        check("the object stays", got("k") == b"content", one)
    client.delete_object(Bucket=B, Key="k", IfMatch=tag, IfMatchSize=7, IfMatchLastModifiedTime=changed)
    check("what is as it should be goes", not os.path.exists(f"{mount}/{B}/k"))
    check("what is not there has gone", failed(client.delete_object, Key="k", IfMatch=tag)[0] is None)
    tag = put("k")
    client.delete_objects(Bucket=B, Delete={"Objects": [{"Key": "k", "ETag": tag, "Size": 7}]})
    check("of several it goes, too", not os.path.exists(f"{mount}/{B}/k"))


def conditions_on_reading():
    tag = put("k", Tagging="p=1&q=2")
    old = "Sat, 29 Oct 1994 19:43:31 GMT"
    os.utime(f"{mount}/{B}/k", (1_000_000_000, 1_000_000_000))
    tag = client.head_object(Bucket=B, Key="k")["ETag"]
    then, later = "Sun, 09 Sep 2001 01:46:40 GMT", "Sun, 09 Sep 2001 01:46:41 GMT"
    for method in "GET", "HEAD":
        for headers, wanted in (
            ({"If-Unmodified-Since": old}, 412),
            ({"If-Unmodified-Since": then}, 200),
            ({"If-Modified-Since": then}, 304),
            ({"If-Modified-Since": later}, 304),
            ({"If-Modified-Since": old}, 200),
            ({"If-None-Match": tag}, 304),
            ({"If-None-Match": '"x"', "If-Modified-Since": later}, 200),
            ({"If-Match": tag, "If-Unmodified-Since": old}, 200),
            ({"If-Match": '"x"'}, 412),
            ({"Range": "bytes=1-2"}, 206),
            ({"Range": "bytes=1-2", "If-Range": tag}, 206),
            ({"Range": "bytes=1-2", "If-Range": '"x"'}, 200),
            ({"Range": "bytes=1-2", "If-Range": then}, 206),
            ({"Range": "bytes=1-2", "If-Range": old}, 200),
        ):
            status, shown, body = ask(method, "/k", headers)
            check(method, status == wanted, headers, status)
            if status == 304:
                check("304 has the tag", shown.get("etag") == tag and not body, headers, shown)
            if method == "GET" and status in (200, 206):
                check("the bytes", body == (b"on" if status == 206 else b"content"), headers, body)
    for name, value, wanted in (
        ("x-amz-copy-source-if-unmodified-since", old, 412),
        ("x-amz-copy-source-if-modified-since", then, 412),
        ("x-amz-copy-source-if-none-match", tag, 412),
        ("x-amz-copy-source-if-match", '"x"', 412),
        ("x-amz-copy-source-if-match", tag, 200),
    ):
        status, _, _ = ask("PUT", "/copy", {"x-amz-copy-source": f"/{B}/k", name: value})
        check("the source of a copy", status == wanted, name, status)
        check("the copy", os.path.exists(f"{mount}/{B}/copy") == (wanted == 200), name)
    status, shown, _ = ask("HEAD", "/k")
    check("how many tags", shown.get("x-amz-tagging-count") == "2", shown)
    check("the id of the request", len(shown.get("x-amz-request-id", "")) == 16, shown)


def parts():
    begun = {
        "Bucket": B,
        "Key": "parted",
        "UploadId": client.create_multipart_upload(Bucket=B, Key="parted")["UploadId"],
    }
    bodies = [b"A" * (5 << 20), b"B" * (5 << 20), b"C" * 7]
    tags = [client.upload_part(**begun, PartNumber=n * 3 + 1, Body=body)["ETag"] for n, body in enumerate(bodies)]
    whole = {"Parts": [{"PartNumber": n * 3 + 1, "ETag": tag} for n, tag in enumerate(tags)]}
    first = client.complete_multipart_upload(**begun, MultipartUpload=whole, IfNoneMatch="*")
    again = client.complete_multipart_upload(**begun, MultipartUpload=whole, IfNoneMatch="*")
    check("the answer that was lost", again["ETag"] == first["ETag"], again)
    for n, body in enumerate(bodies):
        part = client.get_object(Bucket=B, Key="parted", PartNumber=n + 1)
        check("a part", part["Body"].read() == body and part["PartsCount"] == 3, n)
        check(
            "its length", client.head_object(Bucket=B, Key="parted", PartNumber=n + 1)["ContentLength"] == len(body), n
        )
    check("no such part", failed(client.get_object, Key="parted", PartNumber=4)[0] == "InvalidPartNumber")
    said = client.get_object_attributes(
        Bucket=B, Key="parted", ObjectAttributes=["ETag", "ObjectSize", "ObjectParts"], MaxParts=2
    )
    check(
        "attributes",
        (said["ETag"].strip('"'), said["ObjectSize"]) == (first["ETag"].strip('"'), 2 * (5 << 20) + 7),
        said,
    )
    check(
        "parts",
        [part["Size"] for part in said["ObjectParts"]["Parts"]] == [5 << 20] * 2 and said["ObjectParts"]["IsTruncated"],
        said,
    )
    check("how many", said["ObjectParts"]["TotalPartsCount"] == 3, said)
    put("parted", b"other")
    check(
        "another object is not that upload's",
        failed(client.complete_multipart_upload, Key="parted", UploadId=begun["UploadId"], MultipartUpload=whole)[0]
        == "NoSuchUpload",
    )
    check("it stays", got("parted") == b"other")
    check("an object without parts is one", got("parted", PartNumber=1) == b"other")
    check("and no other", failed(client.get_object, Key="parted", PartNumber=2)[0] == "InvalidPartNumber")
    client.put_object(Bucket=B, Key="summed", Body=b"x", ChecksumAlgorithm="SHA256")
    said = client.get_object_attributes(Bucket=B, Key="summed", ObjectAttributes=["Checksum", "StorageClass"])
    check(
        "its checksum",
        said["Checksum"]["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(b"x").digest()).decode(),
        said,
    )


def kept_headers():
    when = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)
    said = {
        "ContentEncoding": "gzip",
        "ContentDisposition": 'attachment; filename="x.gz"',
        "ContentLanguage": "de",
        "CacheControl": "max-age=60",
        "ContentType": "text/x-note",
    }

    def shown(name):
        head = client.head_object(Bucket=B, Key=name)
        return {name: head.get(name) for name in said} == said and head[
            "ExpiresString"
        ] == "Tue, 01 Jan 2030 00:00:00 GMT"

    put("kept", **said, Expires=when)
    check("what was said of an object", shown("kept"))
    client.copy_object(Bucket=B, Key="copied", CopySource={"Bucket": B, "Key": "kept"})
    check("of its copy", shown("copied"))
    begun = {"Bucket": B, "Key": "joined"}
    begun["UploadId"] = client.create_multipart_upload(**begun, **said, Expires=when)["UploadId"]
    part = client.upload_part(**begun, PartNumber=1, Body=b"x")["ETag"]
    client.complete_multipart_upload(**begun, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part}]})
    check("of one in parts", shown("joined"))
    with open(f"{mount}/{B}/kept", "w") as file:
        file.write("not compressed")
    head = client.head_object(Bucket=B, Key="kept")
    check("a coding goes with the content", "ContentEncoding" not in head and head["ContentLanguage"] == "de", head)
    put("plain", ContentEncoding="aws-chunked")
    check("how a body was sent is not kept", "ContentEncoding" not in client.head_object(Bucket=B, Key="plain"))
    other = client.get_object(Bucket=B, Key="copied", ResponseContentDisposition="inline")
    check("another disposition", other["ContentDisposition"] == "inline")


def copies_onto_themselves():
    put("self", b"content", Metadata={"m": "1"})
    own = {"Key": "self", "CopySource": {"Bucket": B, "Key": "self"}}
    check("without a change", failed(client.copy_object, **own)[0] == "InvalidRequest")
    client.copy_object(Bucket=B, **own, MetadataDirective="REPLACE", Metadata={"m": "2"})
    head = client.head_object(Bucket=B, Key="self")
    check("with other metadata", head["Metadata"] == {"m": "2"} and got("self") == b"content", head)


def listings():
    for name in "x-1", "x-2/y", "x-3-4", "y":
        put(f"list/{name}")
    check(
        "another delimiter",
        keys(Prefix="list/", Delimiter="-") == (["list/y"], ["list/x-"]),
        keys(Prefix="list/", Delimiter="-"),
    )
    check("behind a prefix", keys(Prefix="list/x-", Delimiter="-") == (["list/x-1", "list/x-2/y"], ["list/x-3-"]))
    page, seen = client.list_objects_v2(Bucket=B, Prefix="list/", Delimiter="-", MaxKeys=1), []
    while True:
        seen += [entry["Key"] for entry in page.get("Contents", [])] + [
            entry["Prefix"] for entry in page.get("CommonPrefixes", [])
        ]
        if not page["IsTruncated"]:
            break
        page = client.list_objects_v2(
            Bucket=B, Prefix="list/", Delimiter="-", MaxKeys=1, ContinuationToken=page["NextContinuationToken"]
        )
    check("page by page", seen == ["list/x-", "list/y"], seen)
    check("whose it is", b"<Owner><" in ask("GET", "?list-type=2&fetch-owner=true")[2])
    check("where a listing begins", b"<Marker" in ask("GET", "")[2])
    os.makedirs(f"{mount}/No_bucket", exist_ok=True)
    names = [entry["Name"] for entry in client.list_buckets()["Buckets"]]
    check("buckets that can be used", B in names and "No_bucket" not in names, names)
    os.rmdir(f"{mount}/No_bucket")


def folders():
    client.put_object(Bucket=B, Key="folder/", Metadata={"m": "1"})
    os.mkdir(f"{mount}/{B}/directory")
    check("a key that ends in a slash", keys(Prefix="fo") == (["folder/"], []), keys(Prefix="fo"))
    check("among prefixes", keys(Prefix="fo", Delimiter="/") == ([], ["folder/"]))
    check("in itself", keys(Prefix="folder/", Delimiter="/") == (["folder/"], []))
    check("what a mount makes is none", keys(Prefix="directory") == ([], []))
    got_it = client.get_object(Bucket=B, Key="folder/")
    check("what is in it", got_it["Body"].read() == b"" and got_it["Metadata"] == {"m": "1"}, got_it)
    check("it is there already", failed(client.put_object, Key="folder/", IfNoneMatch="*")[0] == "PreconditionFailed")
    check("it has no content", failed(client.put_object, Key="folder/", Body=b"x")[0] == "InvalidRequest")
    client.copy_object(Bucket=B, Key="moved/", CopySource={"Bucket": B, "Key": "folder/"})
    check("its copy", client.head_object(Bucket=B, Key="moved/")["Metadata"] == {"m": "1"})
    put("folder/in")
    client.delete_object(Bucket=B, Key="folder/")
    check("what is in it stays", keys(Prefix="folder") == (["folder/in"], []), keys(Prefix="folder"))
    client.delete_object(Bucket=B, Key="moved/")
    check("an empty one goes", not os.path.exists(f"{mount}/{B}/moved"))
    check("a file is no folder", failed(client.put_object, Key="folder/in/below", Body=b"x")[0] == "InvalidRequest")


def form(fields, content, name="f"):
    boundary = "----------------boundary"
    lines = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    if content is not None:
        lines.append(
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            f"Content-Type: text/plain\r\n\r\n{content}\r\n"
        )
    body = ("".join(lines) + f"--{boundary}--\r\n").encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Origin": "https://elsewhere.example"}
    return send(urllib.request.Request(f"{url}/{B}", data=body, headers=headers, method="POST"))


def forms():
    made = client.generate_presigned_post(
        B,
        "form/${filename}",
        Fields={"content-type": "text/x-form", "success_action_status": "201"},
        Conditions=[
            ["starts-with", "$key", "form/"],
            {"content-type": "text/x-form"},
            {"success_action_status": "201"},
            ["content-length-range", 1, 1000],
        ],
    )["fields"]
    status, _, body = form(made | {"key": "form/a"}, "from a form")
    check("a form", status == 201 and b"<Key>form/a</Key>" in body, status, body)
    check("what it put", got("form/a") == b"from a form")
    check("its type", client.head_object(Bucket=B, Key="form/a")["ContentType"] == "text/x-form")
    for what, fields, content in (
        ("another key", made | {"key": "else"}, "x"),
        ("another type", made | {"key": "form/b", "content-type": "text/html"}, "x"),
        ("a field that was not signed", made | {"key": "form/b", "x-amz-meta-a": "b"}, "x"),
        ("encryption", made | {"key": "form/b", "x-amz-server-side-encryption": "AES256"}, "x"),
        ("too much", made | {"key": "form/b"}, "x" * 1001),
        ("no signature", {"key": "form/b"}, "x"),
        ("another signature", made | {"key": "form/b", "x-amz-signature": "0" * 64}, "x"),
        ("no file", made | {"key": "form/b"}, None),
    ):
        status, _, body = form(fields, content)
        check(f"a form with {what}", 400 <= status < 502 and b"<Message>" in body, status, body)
        check(
            "puts nothing", not os.path.exists(f"{mount}/{B}/form/b") and not os.path.exists(f"{mount}/{B}/else"), what
        )


def other_places():
    def preflight(origin, method, names):
        headers = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": names}
        return send(urllib.request.Request(f"{url}/{B}/k", headers=headers, method="OPTIONS"))

    put("k")
    site = "https://app.example"
    check("no rules", failed(client.get_bucket_cors)[0] == "NoSuchCORSConfiguration")
    check("then nobody may ask", preflight(site, "GET", "")[0] == 403)
    rules = [
        {
            "AllowedOrigins": [site],
            "AllowedMethods": ["GET", "PUT"],
            "AllowedHeaders": ["x-amz-*"],
            "ExposeHeaders": ["ETag"],
            "MaxAgeSeconds": 60,
        }
    ]
    client.put_bucket_cors(Bucket=B, CORSConfiguration={"CORSRules": rules})
    check("rules are kept", client.get_bucket_cors(Bucket=B)["CORSRules"] == rules)
    status, shown, _ = preflight(site, "PUT", "X-Amz-Date")
    check(
        "who may ask",
        status == 200
        and shown.get("access-control-allow-origin") == site
        and shown.get("access-control-max-age") == "60",
        shown,
    )
    for origin, method, names in (
        ("https://evil.example", "GET", ""),
        (site, "DELETE", ""),
        (site, "GET", "authorization"),
    ):
        check("who may not", preflight(origin, method, names)[0] == 403, origin, method, names)
    link = client.generate_presigned_url("get_object", Params={"Bucket": B, "Key": "k"}, ExpiresIn=60)
    for origin, allowed in (site, site), ("https://evil.example", None):
        _, shown, body = send(urllib.request.Request(link, headers={"Origin": origin}))
        check(
            "who may read the answer", body == b"content" and shown.get("access-control-allow-origin") == allowed, shown
        )
    plain = urllib.request.Request(f"{url}/{B}/k", headers={"Origin": site, "Authorization": f"Bearer {key}"})
    check("a key that is shown is for no page", "access-control-allow-origin" not in send(plain)[1])
    client.delete_bucket_cors(Bucket=B)
    check("rules are removed", preflight(site, "GET", "")[0] == 403)


def refusals():
    for call, arguments in (
        (client.get_object, {"Key": "missing"}),
        (
            client.complete_multipart_upload,
            {"Key": "k", "UploadId": "0" * 32, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": "x"}]}},
        ),
        (client.get_bucket_policy, {}),
        (client.put_object, {"Key": "a//b", "Body": b""}),
    ):
        code, sentence = failed(call, **arguments)
        check("an error has a sentence", code and len(sentence) > 10 and sentence != "Unknown", code, sentence)
    status, shown, body = send(urllib.request.Request(f"{url}/{B}/k", headers={"Authorization": "AWS4-HMAC-SHA256 x"}))
    check(
        "what is refused in front is XML",
        status == 400 and b"<Message>" in body and shown["content-type"].startswith("application/xml"),
        body,
    )
    end = str(int(time.time()) + 600)
    mark = base64.b64encode(hmac.new(key.encode(), f"GET\n\n\n{end}\n/{B}/k".encode(), hashlib.sha1).digest()).decode()
    old = f"{url}/{B}/k?AWSAccessKeyId={key.split('.')[0]}&Signature={urllib.parse.quote(mark, safe='')}&Expires={end}"
    for request in urllib.request.Request(old), urllib.request.Request(
        f"{url}/{B}/k", headers={"Authorization": "AWS a:b"}
    ):
        status, _, body = send(request)
        check("a link of version 2 is told so", status == 400 and b"AWS4-HMAC-SHA256" in body, status, body)


def bucket_with_uploads():
    """It goes with what was begun in it, and not with an object."""
    begun = client.create_multipart_upload(Bucket=B, Key="begun")["UploadId"]
    client.upload_part(Bucket=B, Key="begun", UploadId=begun, PartNumber=1, Body=b"x")
    check("a bucket with objects stays", failed(client.delete_bucket)[0] == "BucketNotEmpty")
    uploads = client.list_multipart_uploads(Bucket=B, Delimiter="-", Prefix="b").get("Uploads", [])
    check("with its uploads", [upload["UploadId"] for upload in uploads] == [begun])
    for name in keys()[0]:
        client.delete_object(Bucket=B, Key=name)
    client.delete_bucket(Bucket=B)
    check("nothing is left", not os.path.exists(f"{mount}/{B}"))


client.create_bucket(Bucket=B)
for part in (
    conditions_on_targets,
    conditions_on_removal,
    conditions_on_reading,
    parts,
    kept_headers,
    copies_onto_themselves,
    listings,
    folders,
    forms,
    other_places,
    refusals,
    bucket_with_uploads,
):
    try:
        part()
    except Exception as error:  # one that fails says so, and the rest goes on
        bad.append(f"{part.__name__}: {error!r}")
for what in bad:
    print(f"conditions: {what}")
sys.exit(1 if bad else 0)
